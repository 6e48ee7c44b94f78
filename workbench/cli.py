"""The ``workbench`` command: results on stdout, progress and messages on stderr, exit 2 with one line on bad input."""

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pydantic import ValidationError

from workbench.errors import InputError, one_line
from workbench.files import describe

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["main"]

LARGEST_WORKERS = 1024
LARGEST_SOLVER_SEED = 2**31 - 1


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the command's name; ``sys.argv[1:]`` if omitted.
    """
    try:
        options = _parser().parse_args(arguments)
        options.run(options)
        print(end="", flush=True)
    except InputError as error:
        print(f"workbench: {one_line(error)}", file=sys.stderr)
        return 2
    except ValidationError as error:
        print(f"workbench: {describe(error, {})}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("workbench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _discard_stdout()
        return 141
    except OSError as error:
        print(f"workbench: {error.filename or 'output'}: {error.strerror or one_line(error)}", file=sys.stderr)
        _discard_stdout()
        return 2
    return 0


def _discard_stdout() -> None:
    """Send what stdout still holds to nowhere, so that the interpreter does not fail on it once more at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="workbench", description="Agentic LLM scheduling measured against proven optima.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], text: str, example: str) -> _Parser:
        added = commands.add_parser(
            name, help=text, description=text, epilog=f"example: workbench {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        added.set_defaults(run=run)
        added.add_argument("--json", action="store_true", help="machine-readable output on stdout")
        return added

    add = command(
        "simulate", _simulate, "Run one policy on an instance.",
        "simulate instances/small/bfcl-08.json --policy llf:alpha=3 --perfetto run.json",
    )  # fmt: skip
    add.add_argument("file", help="instance file")
    add.add_argument("--policy", default="hexagent", help="name, with parameters as name:parameter=value")
    add.add_argument("--seed", type=int, default=0, help="seed of a policy that draws at random")
    _add_runtime(add)
    add.add_argument("--gantt", metavar="PNG", help="draw the schedule to this file")
    add.add_argument("--perfetto", metavar="JSON", help="write a trace for ui.perfetto.dev to this file")

    add = command(
        "compare", _compare, "Run several policies on an instance, a row each.",
        "compare instances/small/bfcl-08.json --policies fcfs,llf,hexagent",
    )  # fmt: skip
    add.add_argument("file", help="instance file")
    add.add_argument("--policies", default="all", help="comma-separated policies, or all")
    add.add_argument("--seed", type=int, default=0, help="seed of policies that draw at random")
    _add_runtime(add)

    add = command(
        "solve", _solve, "Find the offline optimum and prove a lower bound.",
        "solve instances/small/bfcl-08.json --objective alpha --tau 1 --time-limit 60",
    )  # fmt: skip
    add.add_argument("file", help="instance file")
    add.add_argument("--objective", choices=("makespan", "alpha"), default="makespan")
    add.add_argument("--tau", type=float, default=1.0, help="share of workflows on time, for alpha")
    add.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="seconds")
    add.add_argument("--workers", type=int, default=2, help="solver threads")
    add.add_argument("--seed", type=int, default=0, help="solver seed")

    add = command("policies", _policies, "List the policies with their parameters.", "policies")

    add = command("validate", _validate, "Check instance files.", "validate instances/small/*.json")
    add.add_argument("files", nargs="+", help="instance files")

    add = command("show", _show, "Describe a cluster, a model or an instance.", "show cluster hetero-1")
    add.add_argument("kind", choices=("cluster", "model", "instance"))
    add.add_argument("name", help="name of the cluster or model, or instance file")
    add.add_argument("--model", default="llama3.1-70b", help="model that a cluster is shown for")

    add = command(
        "generate", _generate, "Write an instance file.",
        "generate bfcl --workflows 400 --rate 40 --seed 0 --cluster hetero-1 --model llama3.1-70b -o bfcl.json",
    )  # fmt: skip
    add.add_argument("kind", choices=("bfcl",), help="workload")
    add.add_argument("--workflows", type=int, default=400)
    add.add_argument("--rate", type=float, default=40.0, help="mean arrivals per second")
    add.add_argument("--seed", type=int, default=0)
    add.add_argument("--full-prompts", action="store_true", help="prefill every prompt in full, without cached prefix")
    add.add_argument("--cluster", default="hetero-1")
    add.add_argument("--model", default="llama3.1-70b")
    add.add_argument("-o", "--output", required=True, help="file to write, gzipped if it ends in .gz")

    add = command(
        "fetch", _fetch, "Rebuild real workflows from the packages that publish them (needs the extra 'fetch').",
        "fetch bfcl -o bfcl_v3_multi_turn.jsonl.gz",
    )  # fmt: skip
    add.add_argument("kind", choices=("bfcl",))
    add.add_argument("-o", "--output", default="bfcl_v3_multi_turn.jsonl.gz", help="lengths file to write")
    return parser


def _add_runtime(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plan-latency", default="zero", metavar="LATENCY", help="zero, constant:MS, measured or measured:FACTOR"
    )
    command.add_argument("--admission", choices=("in_order", "backfill"), default="in_order", help="decode admission")
    command.add_argument(
        "--estimate-error", type=float, default=0.0, metavar="LEVEL", help="error of the estimates that policies see"
    )
    command.add_argument("--decode", choices=("interval", "batched"), default="interval", help="decode model")


def _simulate(options: argparse.Namespace) -> None:
    from workbench.compare import summarise
    from workbench.estimator import EstimateError
    from workbench.files import load
    from workbench.simulator import simulate

    schedule = simulate(
        load(options.file),
        options.policy,
        options.seed,
        plan_latency=options.plan_latency,
        admission=options.admission,
        error=EstimateError(options.estimate_error, options.seed) if options.estimate_error else None,
        decode=options.decode,
    ).check()
    if options.perfetto:
        schedule.to_perfetto(options.perfetto)
    if options.gantt:
        try:
            schedule.gantt().savefig(options.gantt, dpi=150)
        except ValueError as error:  # an ending that names no format
            raise InputError(f"{options.gantt}: cannot draw to this file: {error}") from None
    summary = summarise([schedule])
    if options.json:
        _print_json(_records(summary)[0] | {"schedule": schedule.to_dict()})
    else:
        _print(_text(summary.T))


def _compare(options: argparse.Namespace) -> None:
    from workbench.compare import compare
    from workbench.estimator import EstimateError
    from workbench.files import load

    chosen = None if options.policies == "all" else [spec.strip() for spec in options.policies.split(",")]
    table = compare(
        load(options.file),
        chosen,
        options.seed,
        progress=True,
        plan_latency=options.plan_latency,
        admission=options.admission,
        error=EstimateError(options.estimate_error, options.seed) if options.estimate_error else None,
        decode=options.decode,
    )
    _show_table(table, options.json)


def _solve(options: argparse.Namespace) -> None:
    import solvers
    from workbench.files import load

    if not 0 < options.tau <= 1:
        raise InputError(f"--tau must be above 0 and at most 1, got {options.tau}")
    if not 0 <= options.time_limit < math.inf:
        raise InputError(f"--time-limit must be at least 0 seconds, got {options.time_limit}")
    if not 1 <= options.workers <= LARGEST_WORKERS:
        raise InputError(f"--workers must be from 1 to {LARGEST_WORKERS}, got {options.workers}")
    if not 0 <= options.seed <= LARGEST_SOLVER_SEED:
        raise InputError(f"--seed must be from 0 to {LARGEST_SOLVER_SEED}, got {options.seed}")
    instance = load(options.file)
    with _SolverProgress(options.time_limit) as progress:
        certificate = solvers.solve(
            instance,
            objective=options.objective,
            tau=options.tau,
            time_limit=options.time_limit,
            workers=options.workers,
            seed=options.seed,
            on_progress=progress,
        )
    if options.json:
        _print_json(certificate.to_dict())
    else:
        _print(str(certificate))
    if certificate.interrupted:
        raise KeyboardInterrupt


class _SolverProgress:
    """A progress bar over the time limit that shows both bounds."""

    def __init__(self, limit: float) -> None:
        from tqdm import tqdm

        form = "{l_bar}{bar}| {n:.0f}/{total:.0f} s {postfix}"
        self._limit = limit
        self._bar = tqdm(total=limit, desc="solve", bar_format=form, leave=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, elapsed_s: float, upper_bound: float | None, lower_bound: float | None) -> None:
        self._bar.n = min(elapsed_s, self._limit)
        self._bar.set_postfix({"lower": lower_bound, "upper": upper_bound})


def _policies(options: argparse.Namespace) -> None:
    import pandas as pd

    from workbench.policies import available, parameters

    rows = [
        {
            "policy": name,
            "information": policy.information,
            "parameters": ", ".join(f"{key}={value}" for key, value in parameters(policy).items()),
            "what": (policy.__doc__ or "").splitlines()[0],
        }
        for name, policy in available().items()
    ]
    _show_table(pd.DataFrame(rows).set_index("policy"), options.json)


def _validate(options: argparse.Namespace) -> None:
    import pandas as pd

    from workbench.files import load

    rows = []
    for path in options.files:
        inst = load(path).compile()
        rows.append({"file": path, "workflows": inst.n_workflows, "calls": inst.n_calls})
    _show_table(pd.DataFrame(rows).set_index("file"), options.json)


def _show(options: argparse.Namespace) -> None:
    from workbench import tables

    if options.kind == "cluster":
        table = tables.cluster_table(options.name, options.model)
    elif options.kind == "model":
        table = tables.model_table(options.name)
    else:
        from workbench.files import load

        table = tables.instance_table(load(options.name))
    _show_table(table, options.json)


def _generate(options: argparse.Namespace) -> None:
    from workbench import traces
    from workbench.files import save
    from workbench.instance import Instance

    if options.seed < 0:
        raise InputError(f"--seed must be at least 0, got {options.seed}")
    try:
        work = traces.bfcl(options.workflows, options.rate, options.seed, not options.full_prompts)
    except ValidationError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None
    name = f"{options.kind}-{options.workflows}"
    instance = Instance(workload=work, cluster=options.cluster, model=options.model, name=name)
    save(instance, options.output)
    facts = {
        "file": options.output,
        "workflows": len(work),
        "calls": instance.compile().n_calls,
        "offered_load": instance.offered_load(),
    }
    if options.json:
        _print_json(facts)
    else:
        _print("{file}: {workflows} workflows, {calls} calls, offered prefill load {offered_load:.2f}".format(**facts))


def _fetch(options: argparse.Namespace) -> None:
    from workbench.traces import fetch_bfcl

    workflows = fetch_bfcl.build()
    fetch_bfcl.write(workflows, Path(options.output))
    facts = {"file": options.output, "workflows": len(workflows), "calls": sum(len(w["calls"]) for w in workflows)}
    if options.json:
        _print_json(facts)
    else:
        _print("{file}: {workflows} workflows, {calls} calls".format(**facts))


def _show_table(table: "pd.DataFrame", as_json: bool) -> None:
    if as_json:
        _print_json(_records(table))
    else:
        _print(_text(table))


def _text(table: "pd.DataFrame") -> str:
    return table.to_string(float_format=lambda value: f"{value:.4g}", na_rep="-", max_colwidth=100)


def _records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.reset_index().to_dict(orient="records")  # type: ignore[assignment]
    return rows


def _print_json(value: Any) -> None:
    print(json.dumps(_plain(value), allow_nan=False))


def _print(text: str) -> None:
    """Print text; what the terminal's encoding lacks is shown as an escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: no NumPy types, and null for what is not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
