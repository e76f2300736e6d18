"""Runs all cases of a module on this rank: run_cases.py MODULE FOLDER.

Writes what each case raised, or null, into FOLDER/RANK.json, and ["why"] for one that was skipped;
a job that is lost is left at once.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import pytest
import torch

import kvstore
import kvstore.torch

TIMEOUT_MS = 60_000


def main():
    module = importlib.import_module(sys.argv[1])
    cases = {name: case for name, case in vars(module).items() if name.startswith("case_")}
    kvstore.torch.init(timeout_ms=TIMEOUT_MS)
    if "RANK" in os.environ:
        torch.distributed.init_process_group(getattr(module, "BACKEND", "gloo"))
    outcomes, file = {}, Path(sys.argv[2], f"{kvstore.torch.rank()}.json")
    for name, case in cases.items():
        torch.manual_seed(0)
        try:
            case()
            outcomes[name] = None
        except pytest.skip.Exception as skipped:
            outcomes[name] = [str(skipped)]
        except Exception as error:
            outcomes[name] = traceback.format_exc()
            if isinstance(error, (kvstore.TimeoutError, kvstore.PeerLostError)):
                break
        finally:
            file.write_text(json.dumps(outcomes))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    kvstore.torch.shutdown(timeout=60)


if __name__ == "__main__":
    main()
