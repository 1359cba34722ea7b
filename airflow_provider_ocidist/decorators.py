"""`@task.distributed_training`: every process of a gang runs a function of a DAG file."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    DecoratedOperator,
    task_decorator_factory,
)

from airflow_provider_ocidist.operators.job_arguments import JobArguments, WrittenCode
from airflow_provider_ocidist.operators.training import DistributedTrainingOperator

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator
    from airflow.sdk import Context

    from airflow_provider_ocidist.model.job import TrainingJob

CODE = "ocidist_function"
"""Name of the script and of its folder. A script's folder is the first in which Python looks for modules, so that one
named after the function would take the place of a module: `tokenize`, `datasets`, `evaluate`."""
SCRIPT = f"{CODE}.py"
PROGRAM = """\
from __future__ import annotations

{source}

if __name__ == "__main__":
    import json as _ocidist_json

    _ocidist_call = _ocidist_json.loads({call!r})
    {name}(*_ocidist_call["args"], **_ocidist_call["kwargs"])
"""


class DistributedTrainingDecoratedOperator(DecoratedOperator, DistributedTrainingOperator):
    """Make a function's source the program of a job, which calls it with the given arguments.

    :param job: the job without its program, as for DistributedTrainingOperator
    :param python_callable: the function
    :param op_args: its arguments, which JSON can hold
    :param op_kwargs: the same, by name
    """

    custom_operator_name = "@task.distributed_training"
    # The arguments come before the plan, which depends on them.
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *DistributedTrainingOperator.template_fields,
    )
    shallow_copy_attrs: Sequence[str] = (
        *DecoratedOperator.shallow_copy_attrs,
        *DistributedTrainingOperator.shallow_copy_attrs,
    )
    template_fields_renderers: ClassVar = {
        **DistributedTrainingOperator.template_fields_renderers,
        **DecoratedOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | TrainingJob | str | Path,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any],
        op_kwargs: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        if inspect.iscoroutinefunction(python_callable) or inspect.isgeneratorfunction(python_callable):
            raise TypeError(
                f"{python_callable.__name__} must be a plain function: the nodes neither await nor iterate it"
            )
        super().__init__(
            job=job, python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )
        # After Airflow's own checks, which let parameters be missing that it fills in itself.
        _require_arguments(python_callable, op_args, op_kwargs)

    def execute(self, context: Context) -> Any:
        return DistributedTrainingOperator.execute(self, context)

    def job_arguments(self, context: Context) -> JobArguments:
        """Return what the arguments say of the job, whose program calls the function."""
        name = self.python_callable.__name__
        files = {SCRIPT: self._program(name)}
        code = WrittenCode(folder=CODE, files=files, overrides={"program.script": SCRIPT})
        return replace(super().job_arguments(context), code=code)

    def _program(self, name: str) -> str:
        try:
            arguments = {"args": list(self.op_args), "kwargs": dict(self.op_kwargs)}
            call = json.dumps(arguments)
            _require_text_keys(arguments)
        except (TypeError, ValueError) as error:
            raise AirflowFailException(
                f"{name} cannot be called on the nodes: {error}; pass only values that JSON can represent, and "
                "the URI of anything else"
            ) from error
        return PROGRAM.format(source=source_of(self.python_callable), call=call, name=name)


def source_of(function: Callable[..., Any]) -> str:
    """Return a function's source without its decorators, which do not exist on a node."""
    source = inspect.getsource(function)
    is_nested = source[:1] in (" ", "\t")
    # Dedented, the texts in it that have several lines would be other texts.
    block = f"if True:\n{source}" if is_nested else source
    (outermost,) = ast.parse(block).body
    definition = outermost.body[0] if isinstance(outermost, ast.If) else outermost
    # Not `splitlines`: it also ends lines where Python does not, within texts.
    lines = block.split("\n")[definition.lineno - 1 :]
    return "\n".join(["if True:", *lines] if is_nested else lines)


def _require_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError for parameters without a value that Airflow would fill in, but only on a worker."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*args, **kwargs).arguments
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if name not in given and parameter.kind not in several and parameter.default is parameter.empty
    ]
    if missing:
        example = ", ".join(f'{name}="{{{{ {name} }}}}"' for name in missing)
        raise TypeError(
            f"{function.__name__} has no value for {', '.join(missing)}: Airflow fills in its context on a worker, and "
            f"the nodes call the function; pass what it needs, as {function.__name__}({example})"
        )


def _require_text_keys(value: Any) -> None:
    """Raise TypeError where JSON turns the keys of a mapping into text."""
    match value:
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"the key {key!r} is no text, and JSON would make text of it")
                _require_text_keys(item)
        case list() | tuple():
            for item in value:
                _require_text_keys(item)


def distributed_training_task(
    python_callable: Callable[..., Any] | None = None, **kwargs: Any
) -> TaskDecorator:
    """Wrap a function into a DistributedTrainingOperator; the arguments are that operator's.

    Only the function's source is sent to the nodes: it imports what it needs itself. Its arguments go as JSON. The
    task returns the result of the run, never what the function returns.

    :param python_callable: the function that every process of the gang calls
    :param multiple_outputs: make each key of the result an XCom of its own; false by default
    :param kwargs: arguments of DistributedTrainingOperator
    """
    # The function's return value stays on the nodes: its annotation does not describe the task's XCom.
    kwargs.setdefault("multiple_outputs", False)
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=DistributedTrainingDecoratedOperator,
        **kwargs,
    )
