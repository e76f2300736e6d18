"""The programs in examples/python, as a user starts them."""

import importlib.util
import re

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples" / "python"
DIGITS = ROOT / "examples" / "data" / "digits.csv"
OPTICKS = ROOT / "examples" / "data" / "opticks.txt.bz2"

TUTORIAL = """\
init: 2
push: 8
four devices: 4
updater set: 4
updater push: 6
updater calls: 1
updater key: 3
four outs: 6
keys 5 7 9: 3
updater order: 5 7 9
one out of three keys: 3
list of lists: 11
device init: -2
device push: -7
device three ones: 3
device keys: -3
device multi push: -0.3
device updater set: 3
device updater push: 3.05
"""


def test_the_tutorials_print_the_known_numbers(run):
    result = run(EXAMPLES / "tutorial.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, TUTORIAL, "")


@pytest.mark.parametrize("arguments", [(), ("local",), ("device",)])
def test_rounds_of_a_job_of_one(run, arguments):
    result = run(EXAMPLES / "rounds.py", *arguments)
    rounds = "".join(f"after round {i}: {1 + i:.1f}\n" for i in range(1, 6))
    assert (result.returncode, result.stdout, result.stderr) == (0, rounds, "")


def test_training_on_digits_reaches_its_accuracy(run):
    result = run(EXAMPLES / "train_digits.py", DIGITS)
    assert (result.returncode, result.stderr) == (0, "")
    *epochs, last = result.stdout.splitlines()
    assert len(epochs) == 30
    assert float(last.split()[-1]) >= 0.96


def test_too_little_training_is_a_failure(run):
    result = run(EXAMPLES / "train_digits.py", DIGITS, "--epochs", 1)
    assert (result.returncode, result.stderr) == (1, "")


def test_training_without_data_says_so(run, tmp_path):
    result = run(EXAMPLES / "train_digits.py", tmp_path / "nothing.csv")
    assert result.returncode != 0
    assert "nothing.csv" in result.stderr


def test_without_pytorch_its_example_says_how_to_install_it(run, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.path.append({str(EXAMPLES)!r})"
    )
    result = run("-c", f"{program}; import torch_digits")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("PyTorch is not installed; please run: ")
    assert result.stderr.endswith(" -m pip install torch\n")


def test_training_a_pytorch_model(run):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    result = run(EXAMPLES / "torch_digits.py", DIGITS)
    assert (result.returncode, result.stderr) == (0, "")
    assert float(result.stdout.split()[-1]) >= 0.96


def test_word_vectors_learn_and_rows_do_what_whole_tables_do(run):
    result = run(EXAMPLES / "embedding.py", OPTICKS)
    assert (result.returncode, result.stderr) == (0, "")

    def numbers(pattern):
        return [float(each) for each in re.search(pattern, result.stdout).groups()]

    assert "both ways end with the same bits\n" in result.stdout
    words, dimensions = numbers(r"2 tables of (\d+) x (\d+) float32")
    (steps,) = numbers(r"the first (\d+) steps")
    _, *whole = numbers(r"whole tables +(\S+) +(\S+) +(\S+)\n")
    _, *rows = numbers(r"  rows +(\S+) +(\S+) +(\S+)\n")
    # A step has 64 words; they, 5 more at both ends and 64 of noise are scored.
    of_a_step = 64 + (64 + 10 + 64)
    megabytes = steps * dimensions * 4 / 1e6
    assert whole == [pytest.approx(megabytes * 2 * words, abs=0.1)] * 2
    assert rows == [pytest.approx(megabytes * of_a_step, abs=0.1)] * 2
    factor, _ = numbers(r"rows: (\S+) times fewer bytes, (\S+) times faster")
    assert factor == pytest.approx(2 * words / of_a_step, abs=0.1)

    losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]
    assert len(losses) == 10
    assert losses == sorted(losses, reverse=True)
    chance, *_, last = map(float, re.findall(r"accuracy ([\d.]+)", result.stdout))
    assert chance == 0.5
    assert last >= 0.59
    (colours,) = numbers(r"closest to each colour: (\d+) of 21")
    assert colours >= 14


def test_too_few_epochs_of_word_vectors_are_a_failure(run):
    result = run(EXAMPLES / "embedding.py", OPTICKS, "--epochs", 1, "--steps", 1)
    assert (result.returncode, result.stderr) == (1, "")
