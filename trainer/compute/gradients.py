"""Computes the global norm of the gradients and clips them by it (Pascanu et al. 2013, section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_EPSILON = 1e-6  # epsilon of torch.nn.utils.clip_grads_with_norm_; this module must compute the same coefficient


class GradientClipping:
    """Clips exactly like torch.nn.utils.clip_grad_norm_, without unnecessary work.

    torch also multiplies gradients by a coefficient of 1, because testing it would block the host on a GPU. On a CPU
    the norm is known at once, so small gradients stay unchanged, which saves a pass over all of them.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], limit: float | None) -> None:
        """List the parameters once, because walking a module is slow.

        ``limit``: largest allowed norm; None never clips.
        """
        import torch

        self._utils: Any = torch.nn.utils
        self._parameters = list(parameters)
        self._limit = math.inf if limit is None else limit
        # False for shares (DTensor), whose norm is a share too.
        self._known_at_once = not any(
            parameter.is_cuda or hasattr(parameter, "full_tensor") for parameter in self._parameters
        )

    def __call__(self) -> torch.Tensor:
        """Clip the gradients in place, and return their global norm before clipping."""
        norm: torch.Tensor
        if not self._known_at_once:
            norm = self._utils.clip_grad_norm_(self._parameters, self._limit)
            return norm
        norm = self._utils.get_total_norm(
            [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        )
        if not self._limit / (norm + _EPSILON) >= 1:  # A norm that is NaN makes the gradients NaN, too.
            self._utils.clip_grads_with_norm_(self._parameters, self._limit, norm)
        return norm
