"""HexAGenT workbench: online schedulers of agentic LLM workflows, measured against proven offline optima.

>>> import workbench as wb
>>> work = wb.traces.bfcl(20, rate=4.0, seed=0)
>>> inst = wb.Instance(work, cluster="hetero-1", model="llama3.1-70b")
>>> bool(wb.simulate(inst, policy="hexagent").req(0.95) >= 1)
True
"""

from workbench import traces
from workbench.cluster import Cluster, Group, Link, Pool, preset
from workbench.compare import compare, summarise
from workbench.compiled import CompiledInstance
from workbench.errors import InputError, ScheduleError
from workbench.estimator import EstimateError
from workbench.files import load, save
from workbench.instance import Instance
from workbench.policies import Assignment, Policy, Stage
from workbench.schedule import Schedule
from workbench.simulator import simulate
from workbench.view import View
from workbench.workflow import Call, Workflow, Workload

__all__ = [
    "Assignment",
    "Call",
    "Cluster",
    "CompiledInstance",
    "EstimateError",
    "Group",
    "InputError",
    "Instance",
    "Link",
    "Policy",
    "Pool",
    "Schedule",
    "ScheduleError",
    "Stage",
    "View",
    "Workflow",
    "Workload",
    "compare",
    "load",
    "preset",
    "save",
    "simulate",
    "summarise",
    "traces",
]
