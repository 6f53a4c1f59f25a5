"""Generation: transformers' own ids, the same with and without the cache, deterministic by seed, and where it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trainer.refusals import refusal
from trainer.errors import InputError
from trainer.generate import Generated, TokenChoice, generate, next_token
from trainer.model import Shape, build_model
from trainer.trained_model import TrainedModel

GPT2 = Shape("gpt2", layers=2, width=16, heads=2, kv_heads=2, ffn_width=64, vocab_size=70, positions=40)
LLAMA = replace(GPT2, family="llama", kv_heads=1)
GREEDY, DRAWN = TokenChoice(), TokenChoice(temperature=1.3, seed=5)


def trained(shape: Shape = GPT2, seed: int = 0) -> TrainedModel:
    """A model whose most likely token is not always the same one."""
    torch.manual_seed(seed)
    model: Any = build_model(shape).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(4)
    return TrainedModel("--model tiny", model, None)


def continued(model: TrainedModel, choice: TokenChoice, most: int = 14, **more: Any) -> Generated:
    given = {"vocab_size": 70, "eos_id": None, **more}
    return generate(model, given.pop("prompt", [3, 9, 27]), choice, most, **given)


@pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("seed", range(2))
def test_greedy_ids_are_those_of_transformers(shape: Shape, seed: int) -> None:
    model = trained(shape, seed)
    theirs: Any = model.model
    prompt = torch.tensor([[3, 9, 27]])
    found = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=14,
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )[0, 3:].tolist()
    ours = continued(model, GREEDY)
    assert list(ours.ids) == found
    assert len(set(found)) > 2
    eos_id = found[8]
    first = found.index(eos_id)
    assert continued(model, GREEDY, eos_id=eos_id).ids == tuple(found[:first])


@pytest.mark.parametrize("shape", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("choice", [GREEDY, DRAWN, TokenChoice(0.8, 9, 0.9, 1)])
def test_the_cache_changes_no_id(shape: Shape, choice: TokenChoice) -> None:
    model = trained(shape)
    assert continued(model, choice, 9).ids == continued(model, choice, 9, cache=False).ids


def test_a_seed_gives_the_same_ids_again() -> None:
    model = trained()
    ids = continued(model, DRAWN).ids
    torch.manual_seed(99)  # the process' own random state has no part in it
    before = torch.random.get_rng_state()
    assert continued(model, DRAWN).ids == ids
    assert torch.equal(torch.random.get_rng_state(), before)
    assert continued(model, replace(DRAWN, seed=6)).ids != ids
    assert continued(model, replace(DRAWN, top_k=1)).ids == continued(model, GREEDY).ids
    assert continued(model, replace(DRAWN, top_p=1e-9)).ids == continued(model, GREEDY).ids
    assert continued(model, replace(DRAWN, temperature=1e-6)).ids == continued(model, GREEDY).ids


def test_where_it_ends() -> None:
    model = trained(replace(GPT2, positions=12))
    greedy = continued(model, GREEDY, 10)
    assert (len(greedy.ids), greedy.ending, greedy.computed) == (10, "max tokens", 10)
    longer = continued(model, GREEDY, 11)  # 3 + 9 positions are full: the 10th needs no position of its own
    assert (longer.ids, longer.ending) == (greedy.ids, "context")
    assert continued(model, GREEDY, 1).ids == greedy.ids[:1]
    full = continued(model, GREEDY, 5, prompt=[1] * 12)
    assert (len(full.ids), full.ending) == (1, "context")
    ended = continued(model, GREEDY, eos_id=greedy.ids[0])
    assert (ended.ids, ended.ending, ended.computed) == ((), "end of text", 1)
    assert ended.tokens_per_s > 0


def test_what_cannot_be_is_one_line() -> None:
    model = trained()
    for more, message in (
        ({"prompt": [1] * 41}, "--prompt: 41 tokens, but --model tiny has 40 positions"),
        ({"vocab_size": 71}, "--model tiny has 70 token ids, fewer than the tokenizer (71)"),
        ({"prompt": [70]}, "--prompt: holds the id 70, and --model tiny has 70"),
        ({"prompt": [3, -1]}, "--prompt: holds the id -1, and --model tiny has 70"),
    ):
        assert message in refusal(continued, model, GREEDY, **more)
    with torch.no_grad():
        next(iter(model.model.parameters()))[5, 0] = float("nan")
    with pytest.raises(InputError, match="a logit is NaN after 3 tokens: its weights are not finite"):
        continued(model, GREEDY)


def test_ids_that_stand_for_no_token_are_never_chosen() -> None:
    """An embedding has more rows than the tokenizer has tokens (50,304 for 50,257)."""
    model = trained()
    assert max(continued(model, DRAWN).ids) >= 20
    for choice in (GREEDY, DRAWN):
        assert max(continued(model, choice, vocab_size=20, prompt=[3, 9]).ids) < 20


LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=40)


@example(logits=[0.0, 0.5, 1.0241992996358867e-44], top_k=3, top_p=0.5, seed=0)
@given(logits=LOGITS, top_k=st.integers(1, 50), top_p=st.floats(0.01, 1), seed=st.integers(0, 2**40))
def test_what_is_drawn_is_among_the_likely_ones(logits: list[float], top_k: int, top_p: float, seed: int) -> None:
    """Of the chosen one's betters there are fewer than top_k, and they have less than top_p together."""
    values = torch.tensor(logits)
    chosen = next_token(values, TokenChoice(1.0, top_k, top_p, seed), torch.Generator().manual_seed(seed))
    below = values.double() - values.double().max()  # two that are the same here are as likely as each other
    better = below > below[chosen]
    assert int(better.sum()) < top_k
    kept = values.double().sort(descending=True).values[:top_k].softmax(-1)
    assert float(kept[: int(better.sum())].sum()) < top_p + 1e-9


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """Chi-squared over 4,000 draws by known probabilities, with the limit of one in a million by chance (3 degrees)."""
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    draws = torch.Generator().manual_seed(0)
    choice = TokenChoice(temperature=2.0)
    logits = 2 * shares.log()
    counts = torch.zeros(4)
    for _ in range(4000):
        counts[next_token(logits, choice, draws)] += 1
    assert float(((counts - 4000 * shares) ** 2 / (4000 * shares)).sum()) < 30.7


def test_an_infinite_logit_is_the_only_likely_one() -> None:
    logits = torch.tensor([0.0, float("inf"), 1.0, float("-inf")])
    for choice in (GREEDY, DRAWN):
        assert next_token(logits, choice, torch.Generator().manual_seed(1)) == 1
