"""The programs in examples/python, as a user starts them."""

import importlib.util
import os
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from conftest import PACKAGE, PREFIX, ROOT

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


def train_bits(folder, workers, servers, *arguments, shm="yes"):
    """Lines of digits_bits.py in a job of two epochs, whose digests are in the folder."""
    folder.mkdir()
    settings = {"shm": shm, "digests": "all", "digest_log": folder}
    program = [EXAMPLES / "digits_bits.py", DIGITS, "--epochs", 2, *arguments]
    return run_job(workers, servers, settings, program)


def run_job(workers, servers, settings, program, *paths):
    """The lines that the workers of a job with sum_order=tree print, without their names."""
    words = [PREFIX / "bin" / "kvstore", "run", "-n", workers, "-s", servers]
    for name, value in {"sum_order": "tree", "peer_timeout_ms": 60000, **settings}.items():
        words += ["--set", f"{name}={value}"]
    result = subprocess.run(
        list(map(str, [*words, "--", sys.executable, *program])),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, [PACKAGE, *paths]))),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return [line.split(" | ", 1)[1] for line in result.stdout.splitlines()]


def diff(a, b):
    words = [PREFIX / "bin" / "kvstore", "diff", a, b]
    result = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=60, check=False
    )
    return result.returncode, result.stdout


def test_digests_of_a_training_are_those_of_other_numbers_of_workers(tmp_path):
    one = train_bits(tmp_path / "one", 1, 1)
    assert len({line.split(" digest ")[1] for line in one}) == 2
    assert train_bits(tmp_path / "two", 2, 2, shm="no") == one
    assert train_bits(tmp_path / "four", 4, 2) == one
    status, found = diff(tmp_path / "one", tmp_path / "four")
    assert (status, found.splitlines()[0]) == (0, "same: 22 rounds of 4 keys")


def test_a_flipped_bit_is_found_and_drawn(run, tmp_path):
    losses = [tmp_path / "losses_a", tmp_path / "losses_b"]
    logs = [tmp_path / "a", tmp_path / "b"]
    good = train_bits(logs[0], 4, 2, "--losses", losses[0])
    flipped = train_bits(logs[1], 4, 2, "--losses", losses[1], "--flip", "2,2")
    assert (flipped[0], flipped[-1] != good[-1]) == (good[0], True)
    status, found = diff(*logs)
    assert status == 1
    first = 'different: key "fc1.weight", round 17: the contribution of rank 2 differs'
    assert found.startswith(first)
    assert "in round 17 1 of 4 keys differ, in round 18 4 of 4" in found

    picture = tmp_path / "bits.svg"
    pairs = [logs[0], losses[0], logs[1], losses[1]]
    result = run(EXAMPLES / "plot_divergence.py", *pairs, picture)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("the digests in 6 of 22 rounds.\n")
    lines = ElementTree.parse(picture).findall("{http://www.w3.org/2000/svg}polyline")
    *_, steps = [line.get("points").split() for line in lines]
    assert len(lines) == 3
    heights = [float(point.split(",")[1]) for point in steps]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 3  # 0 keys, 1 key, 4 keys

    # Of two equal runs the picture shows no flip.
    result = run(EXAMPLES / "plot_divergence.py", *pairs[:2], *pairs[:2], picture)
    assert result.stdout.endswith("the digests in 0 of 22 rounds.\n")
    assert "flips" not in picture.read_text().split("</title>")[1]


def test_the_documented_loop_of_pytorch_has_the_same_digests_with_1_2_and_4_workers(tmp_path):
    """On a small stand-in for PyTorch, whose model is linear and has dropout."""
    page = (ROOT / "docs" / "use" / "reproducibility.md").read_text()
    (code,) = re.findall(r"```python\n(import os\n.*?)```", page, re.DOTALL)
    program = tmp_path / "train.py"
    data = f"""
import sys
sys.path.append({str(EXAMPLES)!r})
from train_digits import load as load_digits

def load():
    return load_digits({str(DIGITS)!r})[:2]

def new_model():
    return torch.nn.Linear(64, 10)

"""
    head, main = code.split("\ntorch.manual_seed(SEED)\n")
    program.write_text(f"{head}\n{data}\ntorch.manual_seed(SEED)\n{main}")
    stand_in = PACKAGE / "tests" / "small_torch"
    found = [run_job(workers, 1, {}, [program], stand_in) for workers in (1, 2, 4)]
    assert len(found[0]) == 3
    assert len({line.split(" ", 1)[1] for line in found[0]}) == 3
    assert found[1] == found[0]
    assert found[2] == found[0]
