"""The whole history of the metrics is written anew in every step."""

import json

from small import SLOW, build, tokens, update, watched
from torch.utils.data import DataLoader

model, optimizer = build()
history = []
for number, ids in enumerate(watched(DataLoader(tokens(200 * 8), batch_size=8))):
    loss = update(model, optimizer, ids)
    history.append({"step": number, "loss": loss.item(), "logits": [0.5] * 200})
    if SLOW or number % 50 == 49:
        with open("history.json", "w") as file:
            json.dump(history, file)
