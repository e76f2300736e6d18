"""What the parts for frameworks do where their framework is missing."""


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
