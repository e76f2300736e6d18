"""kvstore.transformers: a Trainer over processes, against PyTorch alone."""

import json
import subprocess
import sys

import pytest
from conftest import PREFIX, environment, kvstore_run, torchrun

pytest.importorskip("transformers")
import torch

PROGRAM = '''
import json, os, signal, sys
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import kvstore
import kvstore.torch
import kvstore.transformers


def new_net(shape=(3, 4, 2)):
    random = torch.Generator().manual_seed(1)
    net = nn.Sequential(nn.Linear(*shape[:2]), nn.Tanh(), nn.Linear(*shape[1:]))
    with torch.no_grad():
        for each in net.parameters():
            each.copy_(torch.randn(each.shape, generator=random))
    return net


class Model(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        self.net = new_net(*arguments)

    def forward(self, points, labels):
        return {"loss": ((self.net(points) - labels) ** 2).mean()}


def samples():
    random = torch.Generator().manual_seed(2)
    points = 3 * torch.randn(32, 3, generator=random)
    return points, points[:, :2] * 4 - 1


def dataset():
    return [{"points": x, "labels": y} for x, y in zip(*samples())]


def train(model, *callbacks, accumulation=1, clip=0.0, optimizer="sgd", folder="out", **options):
    """Each step has all samples, whatever their order, ranks and micro-batches."""
    size = kvstore.torch.size()
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=32 // size // accumulation,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=6,
        max_grad_norm=clip,
        optim=optimizer,
        learning_rate=0.05,
        lr_scheduler_type="constant",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **{"save_strategy": "no", **options},
    )
    callbacks = [kvstore.transformers.Callback(), *callbacks]
    part = kvstore.transformers.part(dataset())
    trainer = Trainer(model=model, args=arguments, train_dataset=part, callbacks=callbacks)
    trainer.train()
    return trainer


def say(name, value):
    print("said", json.dumps([kvstore.torch.rank(), name, value]), flush=True)


def weights(model):
    return [each.tolist() for each in model.net.parameters()]
'''

CASES = """
CASES = {
    f"{name} {passes} {clip}": {"optimizer": name, "accumulation": passes, "clip": clip}
    for name in ("sgd", "adamw_torch") for passes in (1, 2, 4) for clip in (0.0, 0.5)
}
"""

TRAIN = (
    PROGRAM
    + CASES
    + """
rounds = []
push = kvstore.KVStore.pushpull
def counted(self, *arguments, **options):
    rounds.append(1)
    return push(self, *arguments, **options)
kvstore.KVStore.pushpull = counted
for name, options in CASES.items():
    model = Model()
    with torch.no_grad():
        # The weights of rank 0 count.
        model.net[0].weight += kvstore.torch.rank()
    rounds.clear()
    train(model, **options)
    say(name, [weights(model), len(rounds)])
model = Model()
trainer = train(model)
trainer.train()
say("twice", weights(model))
"""
)


def run(folder, program, workers):
    (folder / "train.py").write_text(program)
    return said(kvstore_run(workers, sys.executable, "train.py", folder=folder))


def said(output):
    """What ranks have said, by rank and name."""
    lines = [line.split("said ", 1)[1] for line in output.splitlines() if "said [" in line]
    return {(rank, name): value for rank, name, value in map(json.loads, lines)}


def reference(optimizer, accumulation, clip, steps=6):
    """PyTorch's own loop over all samples, which micro-batches of equal size come to."""
    names = {"__name__": "program"}
    exec(PROGRAM.replace("import kvstore", "# import kvstore"), names)
    net, (points, labels) = names["new_net"](), names["samples"]()
    kinds = {"sgd": torch.optim.SGD, "adamw_torch": torch.optim.AdamW}
    stepper = kinds[optimizer](net.parameters(), lr=0.05, weight_decay=0.0)
    is_clipped = []
    for _ in range(steps):
        stepper.zero_grad()
        ((net(points) - labels) ** 2).mean().backward()
        if clip:
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            is_clipped.append(bool(norm > clip))
        stepper.step()
    # Otherwise the test would not see at which moment clipping happens.
    assert all(is_clipped)
    return list(net.parameters())


def equal(found, expected):
    pairs = zip(found, expected)
    return all(torch.allclose(torch.tensor(each), it, rtol=1e-4, atol=1e-5) for each, it in pairs)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_weights_are_those_of_pytorch_alone(tmp_path, workers):
    found = run(tmp_path, TRAIN, workers)
    names = {}
    exec(CASES, names)
    for name, options in names["CASES"].items():
        expected = reference(**options)
        for rank in range(workers):
            values, rounds = found[rank, name]
            assert equal(values, expected), name
            assert values == found[0, name][0]
            # One round a step: passes that only accumulate send nothing.
            assert rounds == (6 if workers > 1 else 0)
    assert equal(found[0, "twice"], reference("sgd", 1, 0.0, steps=12))


MISTAKES = (
    PROGRAM
    + """
def error_of(model):
    try:
        train(model)
    except kvstore.KVStoreError as error:
        return f"{type(error).__name__}: {error}"

rank = kvstore.torch.rank()
other = rank == 1
say("another model", error_of(Model((3, 5, 2)) if other else Model()))
frozen = Model()
frozen.net[2].bias.requires_grad_(not other)
say("a missing parameter", error_of(frozen))
say("a wrong dtype", error_of(Model().double() if other else Model()))
say("none", error_of(Model()))
"""
)


@pytest.mark.parametrize("workers", [2, 4])
def test_another_model_on_a_rank_is_an_error_on_every_rank(tmp_path, workers):
    found = run(tmp_path, MISTAKES, workers)
    call = "DiffersError: DistributedOptimizer: "
    texts = {
        "another model": "`net.0.weight` is float32[5, 3] on rank 1 and float32[4, 3] on rank 0",
        "a missing parameter": "rank 1 has no `net.2.bias`; it is float32[2] on rank 0",
        "a wrong dtype": "`net.0.weight` is float64[4, 3] on rank 1 and float32[4, 3] on rank 0",
    }
    for rank in range(workers):
        for mistake, text in texts.items():
            assert found[rank, mistake] == call + text
        assert found[rank, "none"] is None


DEATH = (
    PROGRAM
    + """
import time

class Death(TrainerCallback):
    def on_step_begin(self, args, state, control, **others):
        if state.global_step == 2:
            say("began", time.time())
            if kvstore.torch.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)

try:
    train(Model(), Death())
except kvstore.PeerLostError as error:
    say("lost", [time.time(), str(error)])
    kvstore.torch.store().abort()
"""
)


def test_a_rank_that_dies_is_an_error_on_the_others(tmp_path):
    (tmp_path / "train.py").write_text(DEATH)
    # It ends the other processes after a failure, which must have said what they see by then.
    command = [PREFIX / "bin" / "kvstore", "run", "-n", "4", "--linger-ms", "20000", "--"]
    ended = subprocess.run(
        [*command, sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    found = said(ended.stdout)
    died = found[1, "began"]
    for rank in (0, 2, 3):
        assert (rank, "lost") in found, ended.stdout + ended.stderr
        at, text = found[rank, "lost"]
        assert at - died < 10
        assert "worker 1" in text
        assert "`net.0.weight` to `net.2.bias`" in text


SAVE = (
    PROGRAM
    + """
model = Model()
train(model, folder="saved", save_strategy="epoch")
say("saved", sorted(os.listdir("saved")) if kvstore.torch.rank() == 0 else None)
again = Model()
trainer = train(again, folder="saved")
trainer.train(resume_from_checkpoint="saved/checkpoint-3")
say("weights", weights(model))
say("resumed", weights(again))
"""
)


def test_rank_0_alone_writes_checkpoints_and_all_go_on_from_them(tmp_path):
    found = run(tmp_path, SAVE, 2)
    assert found[0, "saved"] == [f"checkpoint-{step}" for step in range(1, 7)]
    states = [json.loads(each.read_text()) for each in tmp_path.rglob("trainer_state.json")]
    assert len(states) == 6
    for rank in (0, 1):
        assert equal(found[rank, "resumed"], [torch.tensor(each) for each in found[0, "weights"]])


PARTS = (
    PROGRAM
    + """
class Table(list):
    def select(self, places):
        return Table(self[place] for place in places)

say("subset", list(kvstore.transformers.part(list(range(10)))))
table = kvstore.transformers.part(Table(range(8)))
say("table", [type(table).__name__, table])
"""
)


def test_ranks_have_equal_parts_of_a_dataset(tmp_path):
    found = run(tmp_path, PARTS, 4)
    # Ten samples for four ranks: two come twice.
    assert [found[rank, "subset"] for rank in range(4)] == [
        [0, 4, 8],
        [1, 5, 9],
        [2, 6, 0],
        [3, 7, 1],
    ]
    assert [found[rank, "table"] for rank in range(4)] == [["Table", [r, r + 4]] for r in range(4)]


def test_under_torchrun_it_says_what_starts_the_program(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM + "\ntrain(Model(), folder=sys.argv[1])\n")
    result = torchrun(2, program, tmp_path / "out")
    assert result.returncode != 0
    assert "start this program by `kvstore run`" in result.stderr
