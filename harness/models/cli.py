"""`python -m harness model list|make|info`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, UsageError
from harness.words import size

if TYPE_CHECKING:
    from harness.models.resolve import ModelFile, ModelProgress
    from harness.progress import Progress


def parser() -> argparse.ArgumentParser:
    """The verb's command line."""
    p = argparse.ArgumentParser(
        prog="python -m harness model",
        description="Models by name (conf/model/) or by file: list, make, inspect.",
    )
    actions = p.add_subparsers(dest="action", required=True, metavar="list|make|info")
    listing = actions.add_parser("list", help="the models that have a name, and which are here")
    making = actions.add_parser("make", help="make or fetch a model")
    info = actions.add_parser("info", help="what a GGUF file or a named model is")
    making.add_argument("name", metavar="NAME", help="a model of `list`")
    making.add_argument("-o", "--output", type=Path, metavar="FILE", help="not into the cache")
    info.add_argument("name", metavar="PATH|NAME", help="a GGUF file, or a model of `list`")
    for action in (making, info):
        action.add_argument(
            "overrides", nargs="*", metavar="key=value", help="as in factor=16 or geometry=tiny"
        )
    for action in (listing, making, info):
        action.add_argument("--cache-dir", metavar="DIR", help="default: ~/.cache/moe-harness")
        action.add_argument("--json", action="store_true", help="print JSON")
    return p


def main(argv: list[str]) -> int:
    """Run the verb; returns the exit code."""
    args = parser().parse_args(argv)
    from harness.progress import Progress
    from harness.screen import Screen

    progress = Progress(Screen(sys.stderr))
    try:
        actions = {"list": _list, "make": _make, "info": _info}
        result = actions[args.action](args, progress)
        progress.close()
    except HarnessError as e:
        progress.close()
        print(f"harness: error: {e}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        progress.close()
        print("harness: interrupted; nothing partial is left", file=sys.stderr)
        return 130
    print(result)
    return 0


def shown_on(progress: Progress) -> Callable[[ModelProgress], None]:
    """A model being made, fetched or hashed, on a screen or in a log."""
    from harness.progress import Step

    def show(step: ModelProgress) -> None:
        if step.note:
            progress.note(step.message)
        else:
            progress(Step(step.message, step.done, step.total))

    return show


def _make(args: argparse.Namespace, progress: Progress) -> str:
    from harness.models import registry
    from harness.models.resolve import resolve_model, write_model

    config = registry.configuration(args.name, args.overrides)
    if args.output is not None:
        model = write_model(
            config, args.output, cache_dir=args.cache_dir, progress=shown_on(progress)
        )
    else:
        model = resolve_model(config, cache_dir=args.cache_dir, progress=shown_on(progress))
    if args.json:
        return json.dumps(model.to_json())
    return f"{model.path}\n{model.origin}: {model.name}, {size(model.info.file_bytes)}"


def _info(args: argparse.Namespace, progress: Progress) -> str:
    from harness.models import registry
    from harness.models.resolve import resolve_model

    named = args.name in registry.names() and not Path(args.name).is_file()
    if named:
        config = registry.configuration(args.name, args.overrides)
    elif args.overrides:
        raise UsageError(f"{args.overrides[0]}: a file has no keys to set")
    elif Path(args.name).expanduser().exists() or "/" in args.name or args.name.endswith(".gguf"):
        config = {"kind": "path", "path": args.name}
    else:
        config = registry.configuration(args.name)  # refuses, with the nearest names
    model = resolve_model(config, cache_dir=args.cache_dir, make=False, progress=shown_on(progress))
    return json.dumps(model.to_json()) if args.json else _describe(model)


def _describe(model: ModelFile) -> str:
    i = model.info
    types = ", ".join(f"{kind} ({n})" for kind, n in sorted(i.types.items()))
    rows = [
        ("name", i.name or model.name),
        ("file", f"{model.path}" + (f" and {n} more" if (n := len(i.shards) - 1) else "")),
        ("sha256", model.sha256),
        ("architecture", i.arch),
        ("layers", f"{i.n_layer}, {i.n_moe_layer} of them with routed experts"),
        ("experts", f"{i.n_expert} in a layer, {i.n_expert_used} used by a token"),
        ("width", f"{i.n_embd}, expert {i.n_ff_expert or 'unknown'}"),
        ("expert weights", f"{types} tensors"),
        ("expert bytes", f"{i.expert_bytes} ({size(i.expert_bytes)})"),
        ("largest expert", f"{i.expert_bytes_max} ({size(i.expert_bytes_max)})"),
        ("dense bytes", f"{i.dense_bytes} ({size(i.dense_bytes)})"),
        ("file bytes", f"{i.file_bytes} ({size(i.file_bytes)})"),
        ("vocabulary", f"{i.n_vocab or 'unknown'} ({i.tokenizer or 'no tokenizer'})"),
        ("trained context", f"{i.n_ctx_train or 'unknown'}"),
    ]
    return "\n".join(f"{label:<16}{text}" for label, text in rows)


def _list(args: argparse.Namespace, progress: Progress) -> str:
    from harness.models import registry

    rows = [_row(name, args.cache_dir) for name in registry.names()] + _architecture_rows()
    if args.json:
        return json.dumps(rows)
    widths = {k: max(len(str(r[k])) for r in rows) for k in ("name", "kind", "state")}
    return "\n".join(
        "  ".join([*(str(r[k]).ljust(w) for k, w in widths.items()), r["about"]]) for r in rows
    )


def _row(name: str, cache_dir: str | None) -> dict[str, Any]:
    from harness.cachedir import cache_root
    from harness.models import hub, registry
    from harness.models.config import HubModel, PathModel, ReferenceModel, parse_model
    from harness.models.resolve import DATA, REFERENCE

    config = parse_model(registry.configuration(name))
    path: Path | None = None
    if isinstance(config, ReferenceModel):
        path = DATA / REFERENCE
        state = "here" if path.is_file() else "missing"
    elif isinstance(config, HubModel):
        path = hub.present(config, cache_root(cache_dir))
        state = "here" if path else "to fetch"
    else:
        state = "yours" if isinstance(config, PathModel) else "made on demand"
    return {
        "name": name,
        "kind": config.kind,
        "state": state,
        "path": str(path) if path is not None and state == "here" else None,
        "about": registry.described(name),
    }


def _architecture_rows() -> list[dict[str, Any]]:
    """Synthetic models by architecture, as `make` takes them."""
    from harness.models.architectures import ARCHITECTURES

    return [
        {
            "name": f"synthetic arch={name}",
            "kind": "synthetic",
            "state": "made on demand",
            "path": None,
            "about": f"Random weights: {arch.about}.",
        }
        for name, arch in ARCHITECTURES.items()
    ]
