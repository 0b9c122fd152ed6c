"""`mmspec serve MODEL`: an OpenAI endpoint whose models speculate."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.arguments import Device, Drafted, Drafter, Options, PolicyName, RuleName, refuse_method
from mmspec.cli.places import text_of
from mmspec.registry.options import parse
from mmspec.serving import refuse_missing

NEEDED = ("fastapi", "uvicorn", "openai", "llguidance", "prometheus_client")  # packages of the extra `serve`


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Language models and pipelines that draw: mmspec/…, a folder, or a hub name.")
    ],
    *,
    method: Annotated[list[str] | None, typer.Option(help="One for all, or one a model; see `mmspec methods`.")] = None,
    drafter: Drafter = None,
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    policy: PolicyName = None,
    opt: Options = None,
    device: Device = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Of the weights; default: float32.")] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A file with a chat template, for models that have none.")
    ] = None,
    host: Annotated[str, typer.Option(help="The default can be reached from this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Longest prompt.")] = 8192,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens of a request.")] = 4096,
    max_pictures: Annotated[int, typer.Option(min=1, help="Most pictures of a request.")] = 4,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Largest body of a request.")] = 1_000_000,
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="Requests of a model that share passes; 1: one at a time.")
    ] = None,
    max_connections: Annotated[int, typer.Option(min=1, help="At a time.")] = 256,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts of a request: prompts times n.")] = 16,
    request_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for a request and its answer.")] = 600,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for running answers when told to stop.")] = 30,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="MMSPEC_API_KEY", show_default=False, help="Any of these opens; none: all may ask."),
    ] = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Let drafters with a network learn from the answers, while no call runs.")
    ] = False,
    continuous_batching: Annotated[bool, typer.Option("--continuous-batching", hidden=True)] = False,
) -> None:
    """Serve models to OpenAI's clients, as `transformers serve` does, and let them speculate."""
    refuse_bypass(continuous_batching)
    each = with_methods(models, method or ["auto"])
    options = parse(opt or [])
    template = None if chat_template is None else text_of(chat_template)
    refuse_missing("mmspec serve", NEEDED, "serve")
    from transformers.utils import logging

    from mmspec.serving.limits import Limits
    from mmspec.serving.models import Models, load
    from mmspec.serving.run import listener, run

    logging.disable_progress_bar()
    keys = api_key or []
    refuse_keys(keys)
    sizes = {"body": max_body_bytes, "prompt": max_prompt_tokens, "new": max_tokens, "pictures": max_pictures}
    limits = Limits(**sizes, texts=max_texts, connections=max_connections, seconds=request_timeout)
    how: dict[str, Any] = {"drafter": drafter, "rule": rule, "k": num_speculative_tokens, "policy": policy}
    how |= {"rows": max_batch, "learn": learn}
    with listener(host, port, open_to_all=not keys) as listening:
        served = {name: load(name, device, dtype, template, options, method=chosen, **how) for name, chosen in each}
        from mmspec.serving.app import application

        run(
            application(Models(served), limits, keys),
            listening,
            max_connections,
            grace,
            lambda url: typer.echo(f"{', '.join(models)}: {url}"),
        )


def with_methods(models: Sequence[str], methods: Sequence[str]) -> list[tuple[str, str]]:
    """Models and their methods: one method for all, or one a model."""
    for name in methods:
        refuse_method(name)
    if len(methods) not in (1, len(models)):
        raise ValueError(f"{len(methods)} methods for {len(models)} models; give one, or one a model")
    if len(set(models)) < len(models):
        raise ValueError(f"a model is named twice: {', '.join(models)}")
    return list(zip(models, methods if len(methods) > 1 else [*methods] * len(models), strict=True))


def refuse_keys(keys: Sequence[str]) -> None:
    """Refuse keys that no client could send."""
    for key in keys:
        if not key.isascii() or not key.isprintable() or not key.strip() or " " in key:
            raise ValueError("a key of --api-key is of printable ASCII characters without spaces, at least one")


def refuse_bypass(continuous_batching: bool) -> None:
    """Refuse what `transformers serve` has and what cannot speculate."""
    if continuous_batching:
        raise ValueError(
            "--continuous-batching decodes without `generate`, so nothing would speculate; "
            "leave it out, or use `transformers serve`"
        )
