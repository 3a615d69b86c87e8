"""GRPO on sums: a small language model is trained by rewards that a verifier gives to groups of answers.

Shao et al. 2024, "DeepSeekMath: Pushing the limits of mathematical reasoning in open language models", equation 3. Five
kinds of processes work side by side: one names the prompts, rollout workers answer them, a verifier and a reference
model add what they know to the answers (late columns), and the trainer takes whole groups of answers. Half of a
prompt's answers come from one call of a worker and half from another; whoever wrote them, they are one item.

From DAPO (Yu et al. 2025) are the larger upper bound of the ratio, and that groups without a difference in reward do
not count in the mean of the loss. The model starts from a short supervised warm-up, since a random one is never right.

Needs torch, Gymnasium and matplotlib: pip install 'di-store[demo]'
"""

import itertools
import sys

import numpy as np
import torch
from harness import Run, generator
from torch import nn
from torch.nn import functional

import di_store
from di_store import Spec

CHARACTERS = "0123456789+=."
NUMBERS, HELD_OUT = 100, 2_000  # sums a+b of numbers below 100; so many of the 10,000 are only for evaluation
PROMPT, ANSWER = 6, 4  # characters of a prompt, "07+85=", and of the longest answer, "198."
WORKERS, GROUP, SHARES, PROMPTS = 2, 8, 2, 16  # answers of a prompt, calls that write them, prompts of a call
BATCH, MAX_STALENESS = 32, 4  # groups; versions: one is published after each update
LEASE_SECONDS = 60  # for prompts and answers that a process works on: many times what it needs
CLIP_LOW, CLIP_HIGH, BETA = 0.2, 0.28, 0.01
KNOWN = 0.25  # probability of a right answer with which the warm-up ends
WIDTH, HEADS, LAYERS = 64, 4, 2
ANSWERS = {
    "prompt": Spec((), "i8"),  # its number in the run
    "tokens": Spec((None,), "i8", max=PROMPT + ANSWER),  # of prompt and answer
    "log_prob": Spec((None,), "f4", max=ANSWER),  # of the answer's tokens, by the policy that wrote it
    "reward": Spec((), "f4", late=True),
    "ref_log_prob": Spec((ANSWER,), "f4", late=True),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, before: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """`before` and the second result: keys and values of all earlier tokens, and with those of `x`."""
        q, *kv = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1))
        kv = torch.stack(kv) if before is None else torch.cat((before, torch.stack(kv)), 3)
        attended = functional.scaled_dot_product_attention(q, *kv, is_causal=before is None)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), kv


class Transformer(nn.Module):
    """Logits `[n, time, characters]` of the characters that follow tokens `[n, time]`."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(len(CHARACTERS), WIDTH), nn.Embedding(PROMPT + ANSWER, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(CHARACTERS)))

    def forward(self, tokens: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        """With a `cache` (empty before the first call), `tokens` are only those that it has not seen yet."""
        done = cache[0].shape[3] if cache else 0
        x = self.token(tokens) + self.position.weight[done : done + tokens.shape[1]]
        states = []
        for i, block in enumerate(self.blocks):
            x, state = block(x, cache[i] if cache else None)
            states.append(state)
        if cache is not None:
            cache[:] = states
        return self.head(x)


def sums(seed: int, held_out: bool) -> np.ndarray:
    """The pairs of numbers to train on, or those held out, `[n, 2]`."""
    order = np.random.default_rng(seed).permutation(NUMBERS**2)
    return np.stack(np.divmod(order[:HELD_OUT] if held_out else order[HELD_OUT:], NUMBERS), 1)


def prompt(a: int, b: int) -> str:
    return f"{a:02}+{b:02}="


def right_answer(a: int, b: int) -> str:
    return f"{a + b}."


def encode(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[CHARACTERS.index(c) for c in text] for text in texts])


def decode(tokens: np.ndarray) -> str:
    return "".join(CHARACTERS[token] for token in tokens)


def is_right(text: str) -> bool:
    return text[PROMPT:] == right_answer(int(text[0:2]), int(text[3:5]))


def log_probs(net: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of the answers in `tokens`, `[n, PROMPT + ANSWER]`: `[n, ANSWER]`."""
    return net(tokens[:, :-1])[:, PROMPT - 1 :].log_softmax(2).gather(2, tokens[:, PROMPT:, None]).squeeze(2)


@torch.no_grad()
def write_answers(
    net: nn.Module, pairs: np.ndarray, greedy: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Answers to `pairs`: tokens `[n, PROMPT + ANSWER]`, lengths of answers `[n]`, log-probabilities `[n, ANSWER]`."""
    tokens = [encode([prompt(a, b) for a, b in pairs])]
    cache, chosen = [], []
    for _ in range(ANSWER):
        log_prob = net(tokens[-1], cache)[:, -1].log_softmax(1)
        tokens.append(log_prob.argmax(1, keepdim=True) if greedy else torch.multinomial(log_prob.exp(), 1))
        chosen.append(log_prob.gather(1, tokens[-1]))
    ends = torch.cat(tokens[1:], 1) == CHARACTERS.index(".")
    ends[:, -1] = True  # an answer without a full stop is cut
    return torch.cat(tokens, 1), 1 + ends.int().argmax(1), torch.cat(chosen, 1)


def prompt_source(_: int, seed: int, store: di_store.Store) -> None:
    rng, pairs, prompts = generator(seed, 1), sums(seed, held_out=False), store.table("prompts")
    for first in itertools.count(step=PROMPTS):
        rows = {"prompt": first + np.arange(PROMPTS), "pair": rng.choice(pairs, PROMPTS)}
        for _ in range(SHARES):
            prompts.extend(rows)


def rollout_worker(index: int, seed: int, store: di_store.Store) -> None:
    generator(seed, 2 + index)
    net, version = Transformer(), 0
    prompts, each = store.table("prompts"), GROUP // SHARES
    with store.writer(["verify", "refer", "train"], lanes=PROMPTS * each) as writer:
        while True:
            drawn = prompts.sample(PROMPTS, lease=LEASE_SECONDS)
            share = drawn.data
            if new := store.latest("policy", newer_than=version):  # what is appended from here on has this version
                net.load_state_dict(new.value)
                version = new.version
            tokens, lengths, log_prob = write_answers(net, share["pair"].repeat(each, 0))
            writer.append(
                {
                    "prompt": share["prompt"].repeat(each),
                    "tokens": [row[: PROMPT + n] for row, n in zip(tokens, lengths, strict=True)],
                    "log_prob": [row[:n] for row, n in zip(log_prob, lengths, strict=True)],
                }
            )  # waits while the trainer's queue is full
            prompts.ack(drawn)  # a worker that is killed before this leaves its prompts to another


def verifier(_: int, store: di_store.Store) -> None:
    answers = store.table("verify")
    while True:
        batch = answers.sample(PROMPTS * GROUP, min_n=1, linger=0, lease=LEASE_SECONDS)
        rewards = [is_right(decode(tokens)) for tokens in batch.data["tokens"]]
        answers.update(batch, {"reward": np.float32(rewards)}, ack=True)


def reference(_: int, store: di_store.Store) -> None:
    net, answers = Transformer(), store.table("refer")
    net.load_state_dict(store.latest("reference").value)
    while True:
        batch = answers.sample(PROMPTS * GROUP, min_n=1, linger=0, lease=LEASE_SECONDS)
        tokens = torch.from_numpy(batch.data["tokens"].padded(to=PROMPT + ANSWER))
        with torch.inference_mode():
            log_prob = log_probs(net, tokens)
        answers.update(batch, {"ref_log_prob": log_prob}, ack=True)


def grpo_loss(net: nn.Module, data: dict) -> torch.Tensor:
    """Equation 3 of groups `[n, GROUP, …]`, negated; its mean is over the groups with different rewards."""
    reward = torch.from_numpy(data["reward"])
    deviation = reward.std(1, correction=0, keepdim=True)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (deviation + 1e-6)).view(-1, 1)
    tokens = torch.from_numpy(data["tokens"].padded(to=PROMPT + ANSWER)).flatten(0, 1)
    behaviour = torch.from_numpy(data["log_prob"].padded(to=ANSWER)).flatten(0, 1)
    length = torch.from_numpy(data["log_prob"].lengths).view(-1, 1)
    log_prob = log_probs(net, tokens)
    ratio = (log_prob - behaviour).exp()
    gain = torch.minimum(ratio * advantage, ratio.clip(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
    to_ref = torch.from_numpy(data["ref_log_prob"]).flatten(0, 1) - log_prob
    divergence = to_ref.exp() - to_ref - 1  # equation 4
    mask = torch.arange(ANSWER) < length
    per_answer = ((gain - BETA * divergence) * mask).sum(1) / length.squeeze(1)
    learns = (deviation > 0).expand(-1, GROUP).flatten()
    return -(per_answer * learns).sum() / learns.sum().clamp(min=1)


def warm_up(net: nn.Module, seed: int, most_updates: int) -> None:
    """Supervised learning of right answers, until the model gives them with probability `KNOWN`."""
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, betas=(0.9, 0.98))
    rng, pairs, known = np.random.default_rng(seed), sums(seed, held_out=False), 0.0
    for _ in range(most_updates):
        answers = [prompt(a, b) + right_answer(a, b) for a, b in rng.choice(pairs, 128)]
        mask = torch.arange(ANSWER) < torch.tensor([[len(answer) - PROMPT] for answer in answers])
        log_prob = log_probs(net, encode([answer.ljust(PROMPT + ANSWER, ".") for answer in answers]))
        known = 0.9 * known + 0.1 * float((log_prob.detach() * mask).sum(1).exp().mean())
        if known > KNOWN:
            return
        optimizer.zero_grad()
        (-log_prob[mask].mean()).backward()
        optimizer.step()


def trainer(run: Run, store: di_store.Store, net: nn.Module) -> None:
    train, version, lag = store.table("train"), 1, 0.0
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.9, 0.98))
    pairs = sums(run.seed, held_out=True)

    def accuracy(problems: int, seed: int) -> float:
        chosen = np.random.default_rng(seed).choice(pairs, problems, replace=False)
        tokens, lengths, _ = write_answers(net, chosen, greedy=True)
        return float(np.mean([is_right(decode(row[: PROMPT + n])) for row, n in zip(tokens, lengths, strict=True)]))

    print(f"after the warm-up: accuracy {accuracy(len(pairs), run.seed):.3f}", flush=True)
    while run.goes_on([train, store.table("verify"), store.table("refer"), store.table("prompts")], accuracy, 500):
        batch = train.sample(BATCH)
        lag += float(np.mean(version - batch.versions))
        optimizer.zero_grad()
        grpo_loss(net, batch.data).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        version = store.publish("policy", net.state_dict())
    dropped = train.stats()["stale_dropped"]
    print(f"groups were {lag / max(1, run.updates - 1):.2f} versions old on average; {dropped} were dropped as too old")


def main() -> int:
    run = Run(__doc__, threshold=0.85, minutes=5, unit="accuracy")
    net = Transformer()
    warm_up(net, run.seed, 20 if run.small else 2_000)
    with di_store.open(memory="256MiB", seed=run.seed) as store:
        named = {"prompt": Spec((), "i8"), "pair": Spec((2,), "i8")}
        store.create_table("prompts", capacity=128, schema=named, limiter=di_store.Queue(2 * SHARES * PROMPTS))
        once = di_store.Once(shuffle=False)  # each answer goes to one process, and stays: it will be updated
        store.create_table("verify", capacity=8_192, schema=ANSWERS, columns=("tokens",), sampler=once)
        store.create_table("refer", capacity=8_192, schema=ANSWERS, columns=("tokens",), sampler=once)
        store.create_table(
            "train",
            capacity=4 * BATCH,
            view=di_store.Group(GROUP, by="prompt", unique=True),  # prompts of a killed worker may be answered twice
            schema=ANSWERS,
            limiter=di_store.Queue(BATCH),
            weights="policy",
            max_staleness=MAX_STALENESS,
        )
        store.publish("reference", net.state_dict())
        store.publish("policy", net.state_dict())
        with (
            run.processes(prompt_source, 1, run.seed, store),
            run.processes(verifier, 1, store),
            run.processes(reference, 1, store),
            run.processes(rollout_worker, WORKERS, run.seed, store),
        ):
            trainer(run, store, net)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
