"""Loops around torch.compile, by name. At its end each prints how often Dynamo broke a graph, and compiled a frame."""

import sys

import torch
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS = 16
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=4)
frames = 0


def backend(graph, _inputs):
    """Runs the graph as it is; counts graphs."""
    global frames
    frames += 1
    return graph.forward


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.layer(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.scale = 1.0
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        if sys.argv[1] == "broken":
            torch._dynamo.graph_break()  # in each step
        return self.head(x) * self.scale


@torch.compile(backend=backend)
def scaled(x):
    torch._dynamo.graph_break()
    return x * 2


if sys.argv[1] == "broken_before":
    scaled(torch.ones(3))
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
model, update, loss_of = net, optimizer.step, lambda x, y: torch.nn.functional.mse_loss(model(x), y)
match sys.argv[1]:
    case "model" | "values" | "broken":
        model = torch.compile(net, backend=backend)
    case "lengths":
        model = torch.compile(net, backend=backend, dynamic=False)
    case "layers":  # of torch alone: the program defines none of the compiled functions
        layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        model = torch.compile(layers, backend=backend, dynamic=False)
    case "fullgraph":
        model = torch.compile(net, backend=backend, fullgraph=True)
    case "in_place":
        net.compile(backend=backend)
    case "blocks":
        for block in net.blocks:
            block.compile(backend=backend)
    case "function":
        loss_of = torch.compile(loss_of, backend=backend)
    case "optimizer":
        update = torch.compile(optimizer.step, backend=backend)

for step, (x, y) in enumerate(loader):
    rows = 4 - step // 5 if sys.argv[1] in ("lengths", "layers") else 4
    if sys.argv[1] == "values" and step % 5 == 4:
        net.scale += 0.5
    loss = loss_of(x[:rows], y[:rows])
    loss.backward()
    update()
    optimizer.zero_grad()
    print(f"{step} {loss.item()!r}")
print(f"graphs {frames} breaks {sum(counters['graph_break'].values())} frames {dict(counters['frames'])}")
