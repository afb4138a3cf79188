"""`orchestrate bench`: compare scheduling policies on the same programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.commands import bench_options, options
from cli.errors import CannotWrite

if TYPE_CHECKING:
    from pathlib import Path

    from serving.sim.compare.compare import Comparison

EPILOG = (
    "Example: orchestrate bench mixed --policy fcfs --policy edf --loads 0.7,1.5 --seeds 3\n\n"
    "Set a policy's parameters: orchestrate bench --policy fcfs --policy 'fcfs:batch=96'\n\n"
    "Replay a trace: orchestrate bench --trace requests.csv --arrivals burst --json\n\n"
    "Run many kinds of work: orchestrate bench --suite --only tiny,chat --window-s 60\n\n"
    "Learn predictions from 25 programs first: orchestrate bench agentic --predictions learned "
    "--learned-runs 25\n\n"
    "Find the load at which 90% of the promises are kept: orchestrate bench --capacity 0.9\n\n"
    "Draw a chart: orchestrate bench --loads 0.7,1,1.5,2 --plot goodput.png\n\n"
    "Simulated results are cached (in ORCHESTRATE_CACHE) until the code changes, so an "
    "interrupted comparison continues where it stopped."
)

_NARROWEST = 60


def bench(
    workload: bench_options.Workload = None,
    policy: bench_options.Policies = None,
    loads: bench_options.Loads = None,
    seeds: bench_options.Seeds = "1",
    window_s: bench_options.WindowS = None,
    warmup_s: bench_options.WarmupS = 60.0,
    engine: bench_options.Engine = "sim",
    suite: bench_options.Suite = False,
    only: bench_options.Only = None,
    capacity: bench_options.Capacity = None,
    replicas: bench_options.Replicas = None,
    trace: bench_options.Traces = None,
    arrivals: bench_options.Arrivals = None,
    slo_scale: bench_options.SloScale = 1.0,
    predictions: bench_options.Predictions = "noisy",
    learned_runs: bench_options.LearnedRuns = None,
    learn_from: bench_options.LearnFrom = None,
    length_bias: bench_options.LengthBias = 1.0,
    future_bias: bench_options.FutureBias = 1.0,
    machine: bench_options.Machine = None,
    slots: bench_options.Slots = 256,
    step_tokens: bench_options.StepTokens = None,
    prefix_caching: bench_options.PrefixCaching = False,
    jobs: bench_options.Jobs = None,
    bound: bench_options.Bound = True,
    plot: bench_options.Plot = None,
    no_cache: bench_options.NoCache = False,
    json: options.Json = False,
) -> None:
    """Compare scheduling policies by goodput, on the production scheduler in virtual time."""
    from cli.commands.bench_capacity import bench_capacity
    from cli.commands.bench_suite import bench_suite
    from cli.render.bench_report import empty_windows
    from cli.terminal.output import warn
    from cli.work import bench_request
    from cli.work.bench_session import run_comparison
    from cli.work.suite_request import suite_names
    from serving.sim.compare.compare import Plan
    from serving.sim.compare.experiment_config import ExperimentConfig

    names = suite_names(
        suite,
        only,
        given={
            f"the workload {workload}": workload is not None,
            "--trace": bool(trace),
            "--arrivals": arrivals is not None,
            "--prefix-caching": prefix_caching,
            "--engine vllm": engine == "vllm",
            "--plot": plot is not None,
            "--capacity": capacity is not None,
        },
    )
    machines = bench_request.replicas_of(
        capacity,
        replicas,
        given={
            f"--loads {loads}": loads is not None,
            "--engine vllm": engine == "vllm",
            "--plot": plot is not None,
        },
    )
    bench_request.check_plot(plot)
    live = bench_request.live_of(
        engine, slots=slots, step_tokens=step_tokens, prefix_caching=prefix_caching
    )
    plan = Plan(
        config=ExperimentConfig(
            source=bench_request.source_of(workload, trace or []),
            machine=bench_request.machine_of(machine, live=live is not None),
            window_s=bench_request.window_of(window_s, live=live is not None),
            warmup_s=warmup_s,
            arrivals=arrivals,
            slo_scale=slo_scale,
            predictions=predictions,
            length_bias=length_bias,
            future_bias=future_bias,
            first_period=bench_request.first_period_of(
                predictions, learned_runs, learn_from, live=live is not None
            ),
            slots=slots,
            step_tokens=bench_request.step_tokens_of(step_tokens, slots=slots),
            prefix_caching=prefix_caching,
        ),
        policies=bench_request.policies_of(policy or []),
        loads=bench_request.loads_of(loads),
        seeds=bench_request.seeds_of(seeds),
        with_bound=bound,
        live=live,
    )
    if names is not None:
        bench_suite(plan, names, jobs=jobs, use_cache=not no_cache, as_json=json)
        return
    if capacity is not None:
        bench_capacity(plan, capacity, machines, jobs=jobs, use_cache=not no_cache, as_json=json)
        return
    comparison = run_comparison(plan, jobs=jobs, use_cache=not no_cache)
    for message in empty_windows(comparison):
        warn(message)
    try:
        if json:
            _print_document(comparison)
        else:
            _print_tables(comparison)
    finally:  # the chart is also drawn if stdout was closed meanwhile
        if plot is not None:
            _draw(comparison, plot)


def _draw(comparison: Comparison, path: Path) -> None:
    from serving.sim.compare.chart import draw

    try:
        draw(comparison, path)
    except OSError as error:
        raise CannotWrite(path, error.strerror or str(error)) from error


def _print_document(comparison: Comparison) -> None:
    from cli.render.bench_report import document_of
    from cli.terminal.output import print_json

    print_json(document_of(comparison))


def _print_tables(comparison: Comparison) -> None:
    from rich.text import Text

    from cli.render.bench_report import goodput_table, latency_table, legend, title
    from cli.terminal.output import is_plain_ascii, print_line, stdout_console, width_of

    console = stdout_console()
    width, ascii_only = width_of(console, narrowest=_NARROWEST), is_plain_ascii(console)
    first, *others = title(comparison)
    print_line(console, Text(first, style="bold"))
    for line in others:
        print_line(console, Text(line, style="dim"))
    for load in comparison.plan.loads:
        rate = load * comparison.capacity_programs_s
        console.print()
        print_line(console, Text(f"load {load:g}x, {rate:.2f} programs/s", style="bold"))
        for table in (goodput_table, latency_table):
            drawn = table(comparison, load, width=width, ascii_only=ascii_only)
            console.print(drawn, width=width)
    console.print()
    for line in legend(comparison, ascii_only=ascii_only):
        print_line(console, Text(line, style="dim"))
