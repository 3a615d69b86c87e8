"""Batches as torch tensors, prepared in the background while the network trains.

Needs torch: pip install di-store torch
"""

import numpy as np
import torch

import di_store

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    with di_store.open(memory="256MiB", seed=0) as store:
        replay = store.create_table("pairs", capacity=10_000, view=di_store.Step())
        x = rng.normal(size=(10_000, 4)).astype(np.float32)
        replay.extend({"x": x, "y": x @ np.float32([1, -2, 3, -4])})
        network = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        network.to(device)
        loader = replay.loader(256, prefetch=2, device=device, pin_memory=device == "cuda")
        for _, batch in zip(range(300), loader, strict=False):
            loss = torch.nn.functional.mse_loss(network(batch.data["x"]).squeeze(1), batch.data["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loader.close()
        print(f"loss {loss.item():.4f}; weights {network.weight.detach().cpu().numpy().round(2).tolist()}")
        assert loss.item() < 0.1
