"""Ctrl-C, and every other signal whose handler raises, ends every call that waits."""

import textwrap

from support import free_address

# What a call may take to end after the signal, as promised; a loaded machine gets more.
HANG_SECONDS = 5

PROLOGUE = f"""
import kvstore, numpy as np, os, signal, sys, threading, time

def interrupted(call, number=signal.SIGINT, kind=KeyboardInterrupt):
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)
    timer = threading.Timer(0.2, send)
    try:
        timer.start()
        call()
    except kind:
        late = time.monotonic() - sent[0]
        print("interrupted" if late < {HANG_SECONDS} else f"late: {{late}}", flush=True)
    else:
        print("returned", flush=True)
    timer.join()
"""

# Another thread pushes key 1 and waits in the updater.
LOCAL = """
gate, entered = threading.Event(), threading.Event()
def update(key, merged, stored):
    entered.set()
    gate.wait(300)
kv = kvstore.create()
kv.init([1, 2], [np.zeros(4)] * 2)
kv.set_updater(update)
pusher = threading.Thread(target=kv.push, args=(1, np.ones(4)), daemon=True)
pusher.start()
assert entered.wait(60)
"""

LOCAL_CALLS = {
    "pull": "lambda: kv.pull(1, out=np.zeros(4))",
    "push": "lambda: kv.push(1, np.ones(4))",
    "a list": "lambda: kv.pull([1, 1], out=[out, np.zeros(4)])",
    "pushpull": "lambda: kv.pushpull(1, np.ones(4), out=np.zeros(4))",
    "broadcast": "lambda: kv.broadcast(3, np.ones(4), out=np.zeros(4)) or kv.pull(1, out=out)",
    "push_rows": "lambda: kv.push_rows(1, [0], np.ones(1))",
    "pull_rows": "lambda: kv.pull_rows(1, [0], out=np.zeros(1))",
    "remove": "lambda: kv.remove(1)",
    "save": "lambda: kv.save('unused.safetensors')",
    "ticket": "held.wait",
    "cancel": "running.cancel",
    "wait_all": "kv.wait_all",
    "close": "kv.close",
}


def checked(run, body, expected):
    result = run("-X", "faulthandler", "-W", "ignore", "-c", PROLOGUE + textwrap.dedent(body))
    assert (result.returncode, result.stdout, result.stderr) == (0, expected, "")


def test_every_call_of_a_local_store(run):
    body = LOCAL + "out = np.zeros(4)\nheld = kv.push_async(1, np.ones(4))\n"
    calls = {name: text for name, text in LOCAL_CALLS.items() if name not in ("cancel", "close")}
    for text in calls.values():
        body += f"interrupted({text})\n"
    body += """
entered.clear()
running = kv.push_async(2, np.ones(4))
assert entered.wait(60)
interrupted(running.cancel)
interrupted(kv.close)
gate.set()
pusher.join(60)
held.wait(60)
running.wait(60)
# What was interrupted is withdrawn: nothing is in the way.
kv.set_updater(None)
kv.push([1, 2], [np.full(4, 3.0)] * 2)
kv.pull(1, out=out)
kv.close()
print(out.tolist())
"""
    checked(run, body, "interrupted\n" * (len(calls) + 2) + "[3.0, 3.0, 3.0, 3.0]\n")


def test_finally_runs_and_other_handlers_do_not_end_a_call(run):
    body = (
        LOCAL
        + """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("handled"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
try:
    threading.Timer(0.5, gate.set).start()
    kv.pull(1, out=np.zeros(4))
    print(seen)
    gate.clear(), entered.clear()
    pusher = threading.Thread(target=kv.push, args=(1, np.ones(4)))
    pusher.start()
    assert entered.wait(60)
    interrupted(lambda: kv.pull(1, out=np.zeros(4)), signal.SIGTERM, SystemExit)
finally:
    gate.set()
    print("cleaned up")
"""
    )
    checked(run, body, "['handled']\ninterrupted\ncleaned up\n")


def test_other_threads_are_not_ended_and_a_handler_may_not_wait(run):
    body = (
        LOCAL
        + """
told = []
def work():
    kv.pull(1, out=np.zeros(4))
    told.append("pulled")
other = threading.Thread(target=work)
other.start()
def handler(number, frame):
    try:
        kv.pull(2, out=np.zeros(4))
    except kvstore.ReentrantError as error:
        told.append("signal handler" in str(error))
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
interrupted(lambda: kv.push(1, np.ones(4)))
gate.set()
other.join(60)
print(told)
"""
    )
    checked(run, body, "interrupted\n[True, 'pulled']\n")


def test_an_interrupt_inside_an_updater_reaches_the_push(run):
    body = (
        LOCAL
        + """
outer = kvstore.create()
outer.init(1, np.zeros(4))
outer.set_updater(lambda key, merged, stored: kv.pull(1, out=np.zeros(4)))
interrupted(lambda: outer.push(1, np.ones(4)))
gate.set()
"""
    )
    checked(run, body, "interrupted\n")


JOB = """
def options(role):
    return dict(root=ROOT, role=role, num_workers=2, num_servers=1)
def serve(role):
    try:
        kvstore.create("dist_sync", **options(role)).serve()
    except kvstore.KVStoreError:
        pass
"""


def test_create_waits_for_a_job_that_does_not_start(run):
    body = (
        f"ROOT = {free_address()!r}\n"
        + JOB
        + """
try:
    probe = kvstore.create("dist_sync", role="scheduler", root=ROOT, num_workers=1, num_servers=1)
except kvstore.UnsupportedError:
    print("interrupted"), sys.exit(0)
interrupted(lambda: kvstore.create("dist_sync", **options("worker")))
"""
    )
    checked(run, body, "interrupted\n")


JOB_CALLS = {
    "init": "lambda: kv.init(9, np.ones(4))",
    "pull": "lambda: kv.push(1, np.ones(4)) or kv.pull(1, out=np.zeros(4))",
    "pushpull": "lambda: kv.pushpull(2, np.ones(4), out=np.zeros(4))",
    "rows": "lambda: kv.push_rows(3, [0], np.ones(1)) or kv.pull_rows(3, [0], out=np.zeros(1))",
    "barrier": "kv.barrier",
    "settings": "lambda: kv.set_optimizer('sgd', learning_rate=0.1)",
    "remove": "lambda: kv.remove(4)",
    "save": "lambda: kv.save('unused.safetensors')",
    "load": "lambda: kv.load('unused.safetensors')",
}


def test_every_call_of_a_job(run):
    # The other worker is there, and takes no part.
    body = (
        f"ROOT = {free_address()!r}\n"
        + JOB
        + """
for role in ("scheduler", "server"):
    threading.Thread(target=serve, args=(role,), daemon=True).start()
stores = []
def join():
    stores.append(kvstore.create("dist_sync", rank=0, **options("worker")))
try:
    joining = threading.Thread(target=join, daemon=True)
    joining.start()
    kv = kvstore.create("dist_sync", rank=1, **options("worker"))
except kvstore.UnsupportedError:
    print("interrupted\\n" * COUNT, end=""), os._exit(0)
joining.join(60)
def together(store):
    store.init([1, 2, 3, 4], [np.zeros(4)] * 4)
    store.barrier(60)
first = threading.Thread(target=together, args=(stores[0],))
first.start()
together(kv)
first.join(60)
"""
    )
    body = f"COUNT = {len(JOB_CALLS)}\n" + body
    for text in JOB_CALLS.values():
        body += f"interrupted({text})\n"
    body += "kv.abort(), stores[0].abort(), sys.stdout.flush(), os._exit(0)\n"
    checked(run, body, "interrupted\n" * len(JOB_CALLS))
