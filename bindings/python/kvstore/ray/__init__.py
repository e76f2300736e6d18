"""Jobs of this library whose scheduler, servers and workers are actors of Ray.

    import kvstore.ray

    job = kvstore.ray.Job(num_workers=4, num_servers=2)
    job.start(Trainer, "digits.csv")                    # four actors of the user's class
    accuracies = job.run("train", epochs=5)             # its method on all ranks

Methods of the class find their store by `kvstore.ray.store()`. An actor that dies is started again
by Ray, and run() calls the method again, which goes on from its checkpoint. The library is a
backend of ray.util.collective too: `kvstore.ray.backend()`. docs/use/frameworks/ray.md has both.
"""

from __future__ import annotations

try:
    import ray as _ray  # noqa: F401
except ImportError as missing:
    raise ImportError("kvstore.ray needs Ray: pip install ray") from missing

from ._backend import backend
from ._job import Job
from ._worker import init, resume, save, store

__all__ = ["Job", "backend", "init", "resume", "save", "store"]

for _name in __all__:
    # Tracebacks and help() show the public place of each name.
    globals()[_name].__module__ = __name__
del _name
