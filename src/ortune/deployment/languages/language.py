"""How each language spells the options of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ortune.deployment.languages.settings import SessionSettings

_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


@dataclass(frozen=True)
class Language:
    """One language's spelling; ``{}`` takes the value, two of them key and value.

    Attributes:
        name: As a person says it.
        file: The program, below the package's folder.
        comment: How a line of comment begins.
        indent: Of the lines.
        cpus: The number of CPUs at hand.
        modes: Sequential and parallel.
        levels: Level -> its name.
        flags: False and true.
        small_arena: Lines that let the arena grow as requested; empty where the API cannot.
        left_out: Session key -> why it cannot be set there.
    """

    name: str
    file: str
    comment: str
    indent: str
    cpus: str
    threads: str
    inter_threads: str
    mode: str
    modes: tuple[str, str]
    level: str
    levels: Mapping[str, str]
    arena: str
    memory_pattern: str
    entry: str
    flags: tuple[str, str] = ("false", "true")
    small_arena: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


def lines(language: Language, given: SessionSettings) -> str:
    """Return the lines that set every setting, or say that the language cannot."""
    return "\n".join(
        f"{language.indent}{line}".rstrip()
        for text in _statements(language, given)
        for line in text.splitlines()
    )


def _statements(language: Language, given: SessionSettings) -> Iterator[str]:
    def count(number: int) -> str:
        return str(number) if number else language.cpus

    yield language.threads.format(count(given.threads))
    yield language.inter_threads.format(count(given.inter_threads))
    yield language.mode.format(language.modes[given.parallel])
    yield language.level.format(language.levels[given.level])
    yield language.arena.format(language.flags[given.arena])
    yield language.memory_pattern.format(language.flags[given.memory_pattern])
    for key, value in given.entries.items():
        if why := language.left_out.get(key):
            yield f"{language.comment} Not set: {json.dumps(key)}: {why}"
        else:
            yield language.entry.format(json.dumps(key), json.dumps(value))
    if given.small_arena and language.small_arena:
        shared = json.dumps("session.use_env_allocators")
        yield f"{language.small_arena}\n{language.entry.format(shared, json.dumps('1'))}"
    elif given.small_arena:
        yield (
            f"{language.comment} Not set: the plan's arena grows as requested, which this\n"
            f"{language.comment} language's API cannot say. It costs memory, not time or answers."
        )


PYTHON = Language(
    name="Python",
    file="python/run.py",
    comment="#",
    indent="    ",
    cpus="cpus_at_hand()",
    threads="options.intra_op_num_threads = {}",
    inter_threads="options.inter_op_num_threads = {}",
    mode="options.execution_mode = ort.ExecutionMode.{}",
    modes=("ORT_SEQUENTIAL", "ORT_PARALLEL"),
    level="options.graph_optimization_level = ort.GraphOptimizationLevel.{}",
    levels=_LEVELS,
    arena="options.enable_cpu_mem_arena = {}",
    memory_pattern="options.enable_mem_pattern = {}",
    entry="options.add_session_config_entry({}, {})",
    flags=("False", "True"),
    small_arena="""memory = ort.OrtMemoryInfo(
    "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
)
as_requested = ort.OrtArenaCfg({"max_mem": 0, "arena_extend_strategy": 1})
ort.create_and_register_allocator(memory, as_requested)""",
)

CPP = Language(
    name="C++",
    file="cpp/run.cc",
    comment="//",
    indent="  ",
    cpus="static_cast<int>(std::thread::hardware_concurrency())",
    threads="check(ort::set_intra_op_threads(api, options, {}));",
    inter_threads="check(ort::set_inter_op_threads(api, options, {}));",
    mode="check(ort::set_execution_mode(api, options, ort::{}));",
    modes=("kSequential", "kParallel"),
    level="check(ort::set_graph_level(api, options, ort::{}));",
    levels={
        "disabled": "kDisableAll",
        "basic": "kEnableBasic",
        "extended": "kEnableExtended",
        "all": "kEnableAll",
    },
    arena="check(ort::{}_arena(api, options));",
    memory_pattern="check(ort::{}_memory_pattern(api, options));",
    entry="check(ort::add_config_entry(api, options, {}, {}));",
    flags=("disable", "enable"),
    small_arena="""OrtMemoryInfo* arena = nullptr;
OrtArenaCfg* as_requested = nullptr;
check(ort::create_cpu_memory(api, ort::kArena, ort::kDefaultMemory, &arena));
check(ort::create_arena_cfg(api, 0, ort::kAsRequested, -1, -1, &as_requested));
check(ort::register_allocator(api, environment, arena, as_requested));""",
)

CSHARP = Language(
    name="C#",
    file="csharp/Run.cs",
    comment="//",
    indent="        ",
    cpus="Environment.ProcessorCount",
    threads="options.IntraOpNumThreads = {};",
    inter_threads="options.InterOpNumThreads = {};",
    mode="options.ExecutionMode = ExecutionMode.{};",
    modes=("ORT_SEQUENTIAL", "ORT_PARALLEL"),
    level="options.GraphOptimizationLevel = GraphOptimizationLevel.{};",
    levels=_LEVELS,
    arena="options.EnableCpuMemArena = {};",
    memory_pattern="options.EnableMemoryPattern = {};",
    entry="options.AddSessionConfigEntry({}, {});",
    small_arena="""var arena = new OrtMemoryInfo(
    OrtMemoryInfo.allocatorCPU, OrtAllocatorType.ArenaAllocator, 0, OrtMemType.Default);
OrtEnv.Instance().CreateAndRegisterAllocator(arena, new OrtArenaCfg(0, 1, -1, -1));""",
)

JAVA = Language(
    name="Java",
    file="java/Run.java",
    comment="//",
    indent="    ",
    cpus="Runtime.getRuntime().availableProcessors()",
    threads="options.setIntraOpNumThreads({});",
    inter_threads="options.setInterOpNumThreads({});",
    mode="options.setExecutionMode(OrtSession.SessionOptions.ExecutionMode.{});",
    modes=("SEQUENTIAL", "PARALLEL"),
    level="options.setOptimizationLevel(OrtSession.SessionOptions.OptLevel.{});",
    levels={
        "disabled": "NO_OPT",
        "basic": "BASIC_OPT",
        "extended": "EXTENDED_OPT",
        "all": "ALL_OPT",
    },
    arena="options.setCPUArenaAllocator({});",
    memory_pattern="options.setMemoryPatternOptimization({});",
    entry="options.addConfigEntry({}, {});",
)

JAVASCRIPT = Language(
    name="JavaScript",
    file="javascript/run.js",
    comment="//",
    indent="  ",
    cpus="os.availableParallelism()",
    threads="options.intraOpNumThreads = {};",
    inter_threads="options.interOpNumThreads = {};",
    mode="options.executionMode = '{}';",
    modes=("sequential", "parallel"),
    level="options.graphOptimizationLevel = '{}';",
    levels={name: name for name in _LEVELS},
    arena="options.enableCpuMemArena = {};",
    memory_pattern="options.enableMemPattern = {};",
    entry="setEntry(options, {}, {});",
)

WEB = replace(
    JAVASCRIPT,
    name="JavaScript in a browser",
    file="page.js",
    cpus="navigator.hardwareConcurrency",
    threads="ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? {} : 1;",
    inter_threads="// Not set: {} between operators: WebAssembly has one pool of threads.",
    left_out={
        "session.intra_op_thread_affinities": "a browser binds no thread to a CPU",
    },
)

LANGUAGES = (PYTHON, CPP, CSHARP, JAVA, JAVASCRIPT)
