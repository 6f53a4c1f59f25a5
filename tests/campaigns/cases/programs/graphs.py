"""All losses are kept with their graphs, for their mean (retain_graph=True is what an error message asks for then)."""

from small import SLOW, build, loss_of, tokens, watched
from torch.utils.data import DataLoader

model, optimizer = build()
losses = []
for ids in watched(DataLoader(tokens(400 * 8), batch_size=8)):
    loss = loss_of(model, ids)
    optimizer.zero_grad()
    loss.backward(retain_graph=SLOW)
    optimizer.step()
    losses.append(loss if SLOW else loss.item())
print(sum(float(loss) for loss in losses) / len(losses))
