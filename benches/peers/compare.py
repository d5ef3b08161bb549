"""Ours beside other routers: see `run`, which starts this."""
import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import loads
import routers

DEFAULT_TOKENIZER = routers.HERE.parent.parent.parent / "shared/tokenizers/qwen3"


def arguments():
    parser = argparse.ArgumentParser(prog="benches/peers/run", description=__doc__)
    names = list(routers.table(None))
    parser.add_argument("--routers", default=",".join(names), help="of %(default)s")
    parser.add_argument("--loads", default=",".join(load.name for load in loads.LOADS), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="slices of each pair, in turns; the table has medians")
    parser.add_argument("--seconds", type=int, default=3, help="of a slice")
    parser.add_argument("--tokenizer", type=Path, default=DEFAULT_TOKENIZER, help="for ours-aware; text blocks without it")
    parser.add_argument("--json", type=Path, help="where the figures go too")
    parser.add_argument("--print-routers", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.routers = args.routers.split(",")
    args.loads = [load for load in loads.LOADS if load.name in args.loads.split(",")]
    if unknown := [name for name in args.routers if name not in names]:
        parser.error(f"no such router: {', '.join(unknown)}")
    return args


def measure(load, router, folder, seconds):
    """One slice."""
    before = router.cpu()
    took = loads.run(load, router, folder, seconds)
    cpu = router.cpu() - before
    return {
        "cpu": cpu / 1000 / took["requests"] if took["requests"] else float("nan"),
        "rate": took["requests"] * 1e6 / took["microseconds"],
        "p50": took["p50"],
        "p99": took["p99"],
        "rss": router.resident() / 1e6,
        "errors": took["errors"],
    }


def median(slices, key):
    return statistics.median(each[key] for each in slices)


def spread(slices):
    """Half the distance of the extremes, in percent of the median."""
    values = [each["cpu"] for each in slices]
    return 50 * (max(values) - min(values)) / statistics.median(values)


def print_load(load, results):
    print(f"\n{load.name}: {load.kib} KiB" + (f", {load.chunks} chunks" if load.chunks else "") + f", {load.connections} in flight")
    print(f"{'router':14}{'CPU µs':>9}{'±%':>5}{'x nginx':>9}{'req/s':>9}{'p50 µs':>9}{'p99 µs':>9}{'MB':>7}{'errors':>8}")
    for name, slices in results.items():
        # Slice by slice: what else the machine did weighed on both.
        beside = results.get("nginx")
        ratio = statistics.median(a["cpu"] / b["cpu"] for a, b in zip(slices, beside)) if beside else float("nan")
        figures = [median(slices, key) for key in ("cpu", "rate", "p50", "p99", "rss")]
        print(
            f"{name:14}{figures[0]:9.1f}{spread(slices):5.0f}{ratio:9.2f}{figures[1]:9.0f}{figures[2]:9.0f}{figures[3]:9.0f}"
            f"{figures[4]:7.0f}{sum(each['errors'] for each in slices):8.0f}",
            flush=True,
        )


def main():
    args = arguments()
    if args.print_routers:
        print(" ".join(args.routers))
        return
    tokenizer = args.tokenizer.resolve() if (args.tokenizer / "tokenizer.json").exists() else None
    folder = Path(tempfile.mkdtemp(prefix="peers-", dir=routers.SCRATCH))
    started, all_figures = [], {}
    try:
        replicas = [routers.replica(f"replica-{at}", folder) for at in range(2)]
        started += replicas
        ports = [replica.port for replica in replicas]
        table = {}
        for name in args.routers:
            router = routers.table(tokenizer)[name](name, folder, ports)
            started.append(router)
            router.wait_until(lambda: routers.chats(router.port))
            table[name] = router
        time.sleep(2)
        idle = {name: round(router.resident() / 1e6, 1) for name, router in table.items()}
        print("idle, MB: " + ", ".join(f"{name} {size:.0f}" for name, size in idle.items()), flush=True)
        for load in args.loads:
            loads.write_requests(load, folder)
            loads.pace(load, ports)
            results = {name: [] for name in table}
            for turn in range(args.rounds + 1):
                for name, router in table.items():
                    # The first warms up.
                    seconds = args.seconds if turn else 1
                    slice_ = measure(load, router, folder, seconds)
                    if turn:
                        results[name].append(slice_)
            print_load(load, results)
            all_figures[load.name] = results
        if args.json:
            args.json.write_text(json.dumps({"idle_mb": idle, "loads": all_figures, "cores": os.cpu_count()}, indent=1))
    except BaseException:
        print(f"logs are in {folder}", file=sys.stderr)
        folder = None
        raise
    finally:
        for process in reversed(started):
            process.stop()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
