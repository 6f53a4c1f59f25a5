"""Loops whose steps end in unusual ways, by name. Each prints a line a step: its number and its loss."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 24
loader = DataLoader(TensorDataset(torch.randn(400, 8), torch.randn(400, 1)), batch_size=4)
mse = torch.nn.functional.mse_loss


def net(inputs=8, outputs=1):
    return torch.nn.Sequential(torch.nn.Linear(inputs, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs))


def adamw(*models):
    return torch.optim.AdamW([p for model in models for p in model.parameters()], lr=1e-2)


def batches():
    step = 0
    while True:
        for x, y in loader:
            yield step, x, y
            step += 1
            if step == STEPS:
                return


def update(step, loss, *optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    print(f"{step} {loss.item()!r}")


def by_hand(step, loss, *parameters):
    """An update without an optimizer."""
    loss.backward()
    with torch.no_grad():
        for p in parameters:
            p -= 0.001 * p.grad
            p.grad = None
    print(f"{step} {loss.item()!r}")


def gan():
    generator, critic = net(8, 8), net()
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for_generator = torch.optim.SGD(generator.parameters(), lr=1e-3)
    for step, x, _ in batches():
        update(step, critic(generator(x).detach()).mean() - critic(x).mean(), for_critic)
        for_generator.zero_grad()
        (-critic(generator(x)).mean()).backward()
        for_generator.step()


def lbfgs():
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for step, x, y in batches():

        def closure():
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            return loss

        print(f"{step} {optimizer.step(closure).item()!r}")


def within_backward():
    model = net()
    optimizers = {p: torch.optim.SGD([p], lr=1e-2) for p in model.parameters()}

    def update_one(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update_one)
    for step, x, y in batches():
        update(step, mse(model(x), y))


def scaler():
    """Every third gradient is infinite: the scaler skips the update, the step ends all the same."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scale = torch.amp.GradScaler("cpu")
    for step, x, y in batches():
        optimizer.zero_grad()
        loss = mse(model(x), y)
        scale.scale(loss * (float("inf") if step % 3 == 2 else 1.0)).backward()
        scale.step(optimizer)
        scale.update()
        print(f"{step} {loss.item()!r}")


def two_optimizers():
    """One of them steps every fourth time only."""
    model, rare = net(), net()
    often, seldom = adamw(model), torch.optim.SGD(rare.parameters(), lr=1e-2)
    for step, x, y in batches():
        update(step, mse(model(x) + rare(x), y), *([often, seldom] if step % 4 == 3 else [often]))


def teacher():
    model, wise = net(), net()
    optimizer = adamw(model)
    for step, x, _ in batches():
        with torch.no_grad():
            wanted = wise(x)
        update(step, mse(model(x), wanted), optimizer)


def two_loaders():
    """Each step takes a batch of each."""
    model = net()
    optimizer = adamw(model)
    others = DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=2)
    for (step, x, y), (more,) in zip(batches(), others):
        update(step, mse(model(x), y) + model(more).mean(), optimizer)


def new_dataset(*, teach=False, evaluate=False):
    """Each epoch of six steps has a dataset of its own, and the last ones are kept."""
    model, wise, kept = net(), net(), []
    optimizer = adamw(model)
    for first in range(0, STEPS, 6):
        kept.append(TensorDataset(torch.randn(24, 8), torch.randn(24, 1)))
        for step, (x, y) in enumerate(DataLoader(kept[-1], batch_size=4), first):
            if teach:
                with torch.no_grad():
                    y = wise(x)
            update(step, mse(model(x), y), optimizer)
            if step == STEPS - 1:
                break
        if evaluate:
            kept.append(TensorDataset(torch.randn(12, 8)))
            for (x,) in DataLoader(kept[-1], batch_size=4):
                with torch.no_grad():
                    model(x)


def new_dataset_and_teacher():
    new_dataset(teach=True)


def new_datasets_of_both():
    """An evaluation after each epoch, whose batches are fetched with gradients on, as by the Hugging Face Trainer."""
    new_dataset(evaluate=True)


def diverges():
    """Its loss is NaN from the tenth step on."""
    model = net()
    optimizer = adamw(model)
    for step, x, y in batches():
        update(step, mse(model(x), y * (float("nan") if step >= 10 else 1.0)), optimizer)


def no_optimizer():
    model = net()
    for step, x, y in batches():
        by_hand(step, mse(model(x), y), *model.parameters())


def neither_loader_nor_optimizer():
    weight = torch.randn(8, 1, requires_grad=True)
    for step in range(STEPS):
        by_hand(step, mse(torch.randn(4, 8) @ weight, torch.zeros(4, 1)), weight)


class SignDescent(torch.optim.Optimizer):
    """One that nobody knows."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p -= 0.001 * p.grad.sign()


def own_optimizer():
    model = net()
    optimizer = SignDescent(model.parameters())
    for step, x, y in batches():
        update(step, mse(model(x), y), optimizer)


globals()[sys.argv[1]]()
