"""Start: one node's part, from what its environment says to its exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.agent.diagnose.outcome import NOT_NEEDED_CODE, STOPPED_CODE
from airflow_provider_ocidist.agent.join import ads_contract
from airflow_provider_ocidist.agent.join.ads_contract import NodeInstructions
from airflow_provider_ocidist.agent.join.ads_meeting import instructions_of_ads
from airflow_provider_ocidist.agent.join.container_restart import (
    STAY,
    close_report,
    report_before,
    wait_for_end,
)
from airflow_provider_ocidist.agent.join.own_turn import Abandoned, await_own_turn
from airflow_provider_ocidist.agent.node import NodeAgent, patience_of
from airflow_provider_ocidist.agent.output_masking import keep_from_log
from airflow_provider_ocidist.agent.stopping import Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.shared_log import AgentFormatter
from airflow_provider_ocidist.errors import AgentError
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE, INCARNATION_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.causes import exit_code_of, remedy_on_node
from airflow_provider_ocidist.model.masking import secrets_in

logger = logging.getLogger("ocidist")


def run_node(argv: Sequence[str] | None = None) -> int:
    """Run this node's part and return the exit code, as `__main__.main`."""
    own = logging.StreamHandler(sys.stderr)
    own.setFormatter(AgentFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[own])
    keep_from_log(secrets_in(dict(os.environ)))
    switch = StopSwitch()
    switch.ask_on_signals()
    try:
        instructions = _instructions(os.environ, sys.argv[1:] if argv is None else argv, switch)
        config, environ = instructions.config, instructions.environ
        lost_before = await_own_turn(config, environ, switch, patience_of(config))
        if lost_before:
            environ = {**environ, INCARNATION_VARIABLE: str(lost_before)}
        before = report_before(config, environ, switch)
        if before is not None:
            close_report(before, config, environ, switch)
            is_over = wait_for_end(config, environ, switch, patience_of(config))
            return NOT_NEEDED_CODE if is_over else STOPPED_CODE
        return NodeAgent(config, environ, switch).run()
    except Abandoned as abandoned:
        logger.error("nobody needs this node, which has waited for its turn: %s", abandoned)
        # Its end may end the others, which save their last checkpoint.
        return STOPPED_CODE if switch.event.wait(STAY) else NOT_NEEDED_CODE
    except Stopped as stopped:
        logger.error("this node ends before it has joined the others: %s", stopped)
        return STOPPED_CODE
    except AgentError as error:
        logger.error(
            "this node cannot start: %s: %s. Remedy: %s", error.cause, error, remedy_on_node(error.cause)
        )
        return exit_code_of(error.cause)


def _instructions(
    environ: Mapping[str, str], arguments: Sequence[str], switch: StopSwitch
) -> NodeInstructions:
    if CONFIG_VARIABLE in environ or not ads_contract.speaks(environ):
        return NodeInstructions(config=AgentConfig.from_env(environ), environ=environ)
    return instructions_of_ads(environ, arguments, switch)
