"""What the parts for frameworks do where theirs is missing, and the pictures of their pages."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[3]
PICTURES = Path("scripts") / "pictures.py"
PAGES = Path("docs") / "use" / "frameworks"
# One column of the framework's with two of ours; then pairs, beside times that are no pair.
PAGE = """\
# Example

## Speed

| a step | theirs | `here` | with & |
|---|---|---|---|
| 4 B | 1,000 | 250 (0.25) | 2000 (2.00) |

![speed](example.svg)

## Words

| call | does |
|---|---|
| 5 | 6 (1.2) |

## More speed

| a round | loss | theirs, 2 | here | theirs, 4 | here |
|---|---|---|---|---|---|
| long | 0.5 | 3.0 | 1.0 (3.0) | .9 | 1.0 (0.9) |
| short | 0.5 | 0.5 | 0.01 | 0.5 | 0.02 |

![speed](example-more-speed.svg)
"""


def test_the_package_imports_no_framework(run):
    names = ("torch", "mxnet", "jax", "ray", "transformers", "lightgbm")
    program = f"import sys, kvstore; print([name for name in {names} if name in sys.modules])"
    result = run("-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


def test_without_pytorch_its_part_says_what_to_install(run, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError")
    result = run("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kvstore.torch")
    assert (result.returncode, result.stdout) == (1, "")
    assert "ImportError: kvstore.torch needs PyTorch: pip install torch" in result.stderr


def test_without_mxnet_its_part_says_what_to_install(run, tmp_path):
    (tmp_path / "mxnet.py").write_text("raise ImportError")
    result = run("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kvstore.mxnet")
    assert (result.returncode, result.stdout) == (1, "")
    assert "ImportError: kvstore.mxnet needs MXNet: pip install mxnet" in result.stderr


def test_without_jax_its_part_says_what_to_install(run, tmp_path):
    (tmp_path / "jax.py").write_text("raise ImportError")
    result = run("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kvstore.jax")
    assert (result.returncode, result.stdout) == (1, "")
    assert "ImportError: kvstore.jax needs JAX: pip install jax" in result.stderr


def test_without_ray_its_part_says_what_to_install(run, tmp_path):
    (tmp_path / "ray.py").write_text("raise ImportError")
    result = run("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kvstore.ray")
    assert (result.returncode, result.stdout) == (1, "")
    assert "ImportError: kvstore.ray needs Ray: pip install ray" in result.stderr


def test_without_transformers_its_part_says_what_to_install(run, tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kvstore.transformers"
    result = run("-c", program)
    assert (result.returncode, result.stdout) == (1, "")
    missing = "ImportError: kvstore.transformers needs Transformers: pip install transformers"
    assert missing in result.stderr


def test_without_lightgbm_its_part_says_what_to_install(run, tmp_path):
    (tmp_path / "lightgbm.py").write_text("raise ImportError")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import kvstore.lightgbm"
    result = run("-c", program)
    assert (result.returncode, result.stdout) == (1, "")
    missing = "ImportError: kvstore.lightgbm needs LightGBM: pip install lightgbm"
    assert missing in result.stderr


def test_the_pictures_of_the_pages_are_those_of_their_tables(run):
    result = run(ROOT / PICTURES, "--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.fixture
def copy(tmp_path):
    """The script, the pages and the pictures in a folder of their own."""
    shutil.copytree(ROOT / PAGES, tmp_path / PAGES)
    (tmp_path / PICTURES).parent.mkdir()
    shutil.copy(ROOT / PICTURES, tmp_path / PICTURES)
    return tmp_path


def edit(path, pattern, text):
    changed, count = re.subn(pattern, text, path.read_text(), count=1)
    assert count == 1
    path.write_text(changed)


@pytest.mark.parametrize("name", ["pytorch", "lightgbm", "ray", "transformers"])
def test_a_picture_that_is_not_that_of_its_table_is_named(run, copy, name):
    edit(copy / PAGES / f"{name}.md", r"[\d.]+ (?=\([\d.]+\) \|)", "987 ")
    result = run(copy / PICTURES, "--check")
    sentence = f"{name}.svg is not what the tables of {name}.md give: make pictures\n"
    assert (result.returncode, result.stdout, result.stderr) == (1, "", sentence)
    assert run(copy / PICTURES).returncode == 0
    assert run(copy / PICTURES, "--check").returncode == 0


def test_a_picture_is_shown_below_its_tables_and_has_some(run, copy):
    edit(copy / PAGES / "ray.md", r"!\[.*\]\(ray.svg\)", "")
    result = run(copy / PICTURES, "--check")
    sentence = "ray.md does not show ray.svg in the section of its tables\n"
    assert (result.returncode, result.stderr) == (1, sentence)
    (copy / PAGES / "ray.md").unlink()
    result = run(copy / PICTURES, "--check")
    sentence = "ray.svg is the picture of no table in docs/use/frameworks\n"
    assert (result.returncode, result.stderr) == (1, sentence)


def drawn(path):
    """The texts of a picture, without halos, and for each bar its colour and where it is."""
    space = "{http://www.w3.org/2000/svg}"
    root = ElementTree.parse(path)
    found = [it for it in root.iter(f"{space}text") if "halo" not in it.get("class", "")]
    # The first one is the background, and the next two are the legend's.
    rects = list(root.iter(f"{space}rect"))[1:]
    bars = [(it.get("fill"), float(it.get("x")), float(it.get("width"))) for it in rects]
    (line,) = (it.get("d") for it in root.iter(f"{space}path") if it.get("class") == "goal")
    return [it.text for it in found], bars[:2], bars[2:], float(line[1:].split()[0])


def test_bars_are_the_frameworks_time_divided_by_ours_whatever_the_brackets_divide(run, tmp_path):
    (tmp_path / PAGES).mkdir(parents=True)
    (tmp_path / PAGES / "example.md").write_text(PAGE)
    (tmp_path / PICTURES).parent.mkdir()
    shutil.copy(ROOT / PICTURES, tmp_path / PICTURES)
    assert run(tmp_path / PICTURES).returncode == 0
    pictures = sorted(path.name for path in (tmp_path / PAGES).glob("*.svg"))
    assert pictures == ["example-more-speed.svg", "example.svg"]

    texts, legend, bars, one = drawn(tmp_path / PAGES / "example.svg")
    assert {"Example: Speed", "a step, beside theirs", "4 B", "here", "with &"} <= set(texts)
    assert [it for it in texts if it in ("4.0", "0.50")] == ["4.0", "0.50"]
    faster, slower = (colour for colour, _, _ in legend)
    # 1000 / 250 is two doublings to the right of the line, 1000 / 2000 one to its left.
    (first, x, long), (second, y, short) = bars
    assert (first, second) == (faster, slower)
    assert x == pytest.approx(one) and y + short == pytest.approx(one, abs=0.2)
    assert long == pytest.approx(2 * short, abs=0.2)

    texts, _, bars, one = drawn(tmp_path / PAGES / "example-more-speed.svg")
    labels = ["here beside theirs, 2", "3.0", "here beside theirs, 4", "0.90"]
    assert [it for it in texts if it in labels] == labels
    assert "long" in texts and "short" not in texts
    assert [colour for colour, _, _ in bars] == [faster, slower]
