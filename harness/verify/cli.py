"""`python -m harness verify layer`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from harness.errors import HarnessError, UsageError

PROMPT = (
    "The experts of a layer are asked one after the other, and whoever answers is weighed: "
    "this text is long enough for most of them to be asked once."
)


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness verify",
        description="Recompute a MoE layer from the model's file and compare with the engine.",
        epilog="What follows -- goes to the engine as it is: -- --moe-stream --evict lfu",
    )
    what = p.add_subparsers(dest="what", required=True, metavar="layer")
    layer = what.add_parser("layer", help="routing, weights and output of one layer")
    layer.add_argument("model", metavar="PATH|NAME", help="a GGUF file, or a model of `model list`")
    layer.add_argument("--layer", type=int, required=True, metavar="K", help="counted from 0")
    layer.add_argument("--dump", metavar="PREFIX", help="check these files, run nothing")
    layer.add_argument("--keep", metavar="PREFIX", help="keep the dump there (default: dropped)")
    prompt = layer.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="default: a sentence of its own")
    prompt.add_argument("--file", metavar="FILE", help="file with the prompt")
    layer.add_argument("--tokens", type=int, metavar="N", help="to decode after it (default: 16)")
    layer.add_argument("--threads", type=int, metavar="N", help="the engine's -t")
    layer.add_argument("--stream", action="store_true", help="page experts (--moe-stream)")
    layer.add_argument("--cache-mb", metavar="N", help="the engine's; pages experts")
    layer.add_argument("--ram-budget-mb", metavar="N", help="the engine's; pages experts")
    layer.add_argument("--overlap", action="store_true", help="the engine's; pages experts")
    layer.add_argument("--engine", type=Path, metavar="FILE", help="another build of the engine")
    layer.add_argument("--cache-dir", metavar="DIR", help="default: ~/.cache/moe-harness")
    layer.add_argument("--json", action="store_true", help="print JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code: 0 every check holds, 1 one does not, 2 wrong usage."""
    ours, engine_flags = argv, []
    if "--" in argv:
        at = argv.index("--")
        ours, engine_flags = argv[:at], argv[at + 1 :]
    args = parser().parse_args(ours)
    try:
        return _layer(args, engine_flags)
    except HarnessError as e:
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("harness: interrupted", file=sys.stderr)
        return 130


def _layer(args: argparse.Namespace, engine_flags: list[str]) -> int:
    if args.layer < 0:
        raise UsageError(f"--layer {args.layer}: layers are counted from 0")
    model = _model(args)
    if args.dump is not None:
        _refuse_without_a_run(args, engine_flags)
        return _verify(args, model, args.dump, same_machine=False)
    with tempfile.TemporaryDirectory(prefix="moe-verify-") as folder:
        prefix = args.keep or f"{folder}/layer"
        _run(args, engine_flags, model, prefix)
        return _verify(args, model, prefix, same_machine=True)


def _refuse_without_a_run(args: argparse.Namespace, engine_flags: list[str]) -> None:
    """With --dump nothing is run, so flags about a run could not act."""
    about_a_run = {
        "--keep": args.keep,
        "--prompt": args.prompt,
        "--file": args.file,
        "--tokens": args.tokens,
        "--threads": args.threads,
        "--stream": args.stream,
        "--cache-mb": args.cache_mb,
        "--ram-budget-mb": args.ram_budget_mb,
        "--overlap": args.overlap,
        "--engine": args.engine,
        "--": engine_flags,
    }
    for flag, value in about_a_run.items():
        if value not in (None, False, []):
            raise UsageError(
                f"{flag} cannot act with --dump: nothing is run; leave one of them out"
            )


def _model(args: argparse.Namespace) -> Path:
    from harness.models import registry
    from harness.models.resolve import resolve_model

    if args.model in registry.names() and not Path(args.model).is_file():
        return resolve_model(registry.configuration(args.model), cache_dir=args.cache_dir).path
    return Path(args.model).expanduser()


def _run(args: argparse.Namespace, engine_flags: list[str], model: Path, prefix: str) -> None:
    from harness.build import ensure_engine
    from harness.build.cli import shown_on
    from harness.build.programs import given_program
    from harness.progress import Progress
    from harness.screen import Screen
    from harness.verify.engine_run import dump_layer
    from harness.verify.tensors import open_layer

    open_layer(model, args.layer)  # what cannot be verified is refused before anything runs
    engine = given_program(args.engine, "--engine")
    if engine is None:
        progress = Progress(Screen(sys.stderr))
        cache_dir = Path(args.cache_dir) if args.cache_dir else None
        try:
            engine = ensure_engine(cache_dir=cache_dir, progress=shown_on(progress)).engine
        finally:
            progress.close()
    prompt = ["-f", args.file] if args.file else ["-p", args.prompt or PROMPT]
    flags = ["-n", str(16 if args.tokens is None else args.tokens)]
    if args.threads is not None:
        flags += ["-t", str(args.threads)]
    if args.stream or args.cache_mb is not None or args.overlap:
        flags.append("--moe-stream")
    for flag, value in (("--cache-mb", args.cache_mb), ("--ram-budget-mb", args.ram_budget_mb)):
        if value is not None:
            flags += [flag, value]
    if args.overlap:
        flags.append("--overlap")
    dump_layer(engine, model, args.layer, prefix, [*prompt, *flags, *engine_flags])


def _verify(args: argparse.Namespace, model: Path, prefix: str, same_machine: bool) -> int:
    from harness.verify.dump import read_dump
    from harness.verify.layer import verify_layer

    dump = read_dump(prefix, args.layer)
    report = verify_layer(model, args.layer, dump, same_machine=same_machine)
    print(json.dumps(report.to_json()) if args.json else report.text())
    return 0 if report.ok else 1
