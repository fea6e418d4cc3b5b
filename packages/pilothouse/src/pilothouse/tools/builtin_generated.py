"""The inputs and outputs of the tools of Claude Code 2.1.332, with the keys of the wire.

Generated from the official declarations by `python -m tests.cli_versions bump`; do not edit.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from pilothouse.tools.calls import Call


class AgentOutputCompletedContent(TypedDict):
    type: Literal["text"]
    text: str
    citations: NotRequired[list[Any] | None]


class AgentOutputCompletedUsageServerToolUse1(TypedDict):
    web_search_requests: float
    web_fetch_requests: float


class AgentOutputCompletedUsageCacheCreation1(TypedDict):
    ephemeral_1h_input_tokens: float
    ephemeral_5m_input_tokens: float


class AgentOutputCompletedUsageOutputTokensDetails1(TypedDict):
    thinking_tokens: NotRequired[float | None]


class AgentOutputCompletedUsage(TypedDict):
    input_tokens: float
    output_tokens: float
    cache_creation_input_tokens: float | None
    cache_read_input_tokens: float | None
    server_tool_use: AgentOutputCompletedUsageServerToolUse1 | None
    service_tier: str | None
    cache_creation: AgentOutputCompletedUsageCacheCreation1 | None
    inference_geo: NotRequired[str | None]
    speed: NotRequired[str | None]
    iterations: NotRequired[Any]
    output_tokens_details: NotRequired[AgentOutputCompletedUsageOutputTokensDetails1 | None]
    fallback_credit: NotRequired[Any]


class AgentOutputCompletedToolStats(TypedDict):
    readCount: float
    searchCount: float
    bashCount: float
    editFileCount: float
    linesAdded: float
    linesRemoved: float
    otherToolCount: float
    frameCount: NotRequired[float]


class AgentOutputCompleted(TypedDict):
    agentId: str
    agentType: NotRequired[str]
    content: list[AgentOutputCompletedContent]
    resolvedModel: NotRequired[str]
    modelsUsed: NotRequired[list[str]]
    totalToolUseCount: float
    totalDurationMs: float
    totalTokens: float
    usage: AgentOutputCompletedUsage
    toolsUsed: NotRequired[list[str]]
    toolStats: NotRequired[AgentOutputCompletedToolStats]
    status: Literal["completed"]
    prompt: str
    worktreePath: NotRequired[str]
    worktreeBranch: NotRequired[str]


class AgentOutputAsyncLaunched(TypedDict):
    status: Literal["async_launched"]
    isAsync: NotRequired[Literal[True]]
    agentId: str
    description: str
    resolvedModel: NotRequired[str]
    modelsUsed: NotRequired[list[str]]
    prompt: str
    outputFile: str
    canReadOutputFile: NotRequired[bool]


class AgentOutputRemoteLaunched(TypedDict):
    status: Literal["remote_launched"]
    taskId: str
    sessionUrl: str
    description: str
    prompt: str
    outputFile: str


AgentOutput: TypeAlias = AgentOutputCompleted | AgentOutputAsyncLaunched | AgentOutputRemoteLaunched


class FileReadOutputTextFile(TypedDict):
    filePath: str
    content: str
    numLines: float
    startLine: float
    totalLines: float
    truncatedByTokenCap: NotRequired[bool]


class FileReadOutputTextArtifactRead(TypedDict):
    slug: str
    ver: str


class FileReadOutputText(TypedDict):
    type: Literal["text"]
    file: FileReadOutputTextFile
    artifactRead: NotRequired[FileReadOutputTextArtifactRead]


class FileReadOutputImageFileDimensions(TypedDict):
    originalWidth: NotRequired[float]
    originalHeight: NotRequired[float]
    displayWidth: NotRequired[float]
    displayHeight: NotRequired[float]


class FileReadOutputImageFile(TypedDict):
    base64: str
    type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    originalSize: float
    dimensions: NotRequired[FileReadOutputImageFileDimensions]


class FileReadOutputImage(TypedDict):
    type: Literal["image"]
    file: FileReadOutputImageFile


class FileReadOutputNotebookFile(TypedDict):
    filePath: str
    cells: list[Any]


class FileReadOutputNotebook(TypedDict):
    type: Literal["notebook"]
    file: FileReadOutputNotebookFile


class FileReadOutputPdfFile(TypedDict):
    filePath: str
    base64: str
    originalSize: float


class FileReadOutputPdf(TypedDict):
    type: Literal["pdf"]
    file: FileReadOutputPdfFile


class FileReadOutputPartsFile(TypedDict):
    filePath: str
    originalSize: float
    count: float
    outputDir: str


class FileReadOutputPartsPages(TypedDict):
    base64: str
    mediaType: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    error: NotRequired[str]


class FileReadOutputParts(TypedDict):
    type: Literal["parts"]
    file: FileReadOutputPartsFile
    firstPage: NotRequired[float]
    pages: NotRequired[list[FileReadOutputPartsPages]]


FileReadOutput: TypeAlias = (
    FileReadOutputText | FileReadOutputImage | FileReadOutputNotebook | FileReadOutputPdf | FileReadOutputParts
)


class ListMcpResourcesOutputItem(TypedDict):
    uri: str
    name: str
    mimeType: NotRequired[str]
    description: NotRequired[str]
    server: str


ListMcpResourcesOutput: TypeAlias = list[ListMcpResourcesOutputItem]


class RefreshMcpToolsOutputItem(TypedDict):
    server: str
    status: Literal["refreshed", "error", "not_connected"]
    toolCount: NotRequired[float]
    added: NotRequired[list[str]]
    removed: NotRequired[list[str]]
    error: NotRequired[str]


RefreshMcpToolsOutput: TypeAlias = list[RefreshMcpToolsOutputItem]


class McpOutput2(TypedDict):
    type: str


McpOutput: TypeAlias = str | list[McpOutput2] | dict[str, Any]


class ArtifactOutput1Stored(TypedDict):
    contract: str
    preferredContract: NotRequired[str]
    capabilities: NotRequired[dict[str, Any]]
    carried: NotRequired[bool]
    read: NotRequired[str]


class ArtifactOutput1(TypedDict):
    url: str
    path: str
    artifact_id: NotRequired[str]
    title: NotRequired[str]
    version: NotRequired[str]
    capabilities: NotRequired[Any]
    stored: NotRequired[ArtifactOutput1Stored]
    warnings: NotRequired[list[str]]
    publishesRemaining: NotRequired[float]
    publishesResetAt: NotRequired[float]
    contract: NotRequired[str]
    updated: NotRequired[bool]
    owned: NotRequired[bool]
    icon: NotRequired[str]
    faviconSent: NotRequired[Literal[True]]
    iconDropped: NotRequired[Literal[True]]
    audience: NotRequired[str]
    folder_audience: NotRequired[Literal["others", "unknown"]]
    seq: NotRequired[float]
    unchanged: NotRequired[Literal[True]]
    liveSubscription: NotRequired[str]
    pinned: NotRequired[bool]


class ArtifactOutput2Artifacts(TypedDict):
    title: str
    url: str
    favicon: NotRequired[str]
    updatedAt: NotRequired[str]
    rel: NotRequired[Literal["mine", "shared"]]
    external: NotRequired[Literal[True]]
    role: NotRequired[Literal["editor", "commenter", "reader", "viewer"]]
    outsidersMayHaveWritten: NotRequired[Literal[True]]
    listedKind: NotRequired[str]
    pinned: NotRequired[bool]


class ArtifactOutput2(TypedDict):
    artifacts: list[ArtifactOutput2Artifacts]
    truncated: NotRequired[bool]
    total: NotRequired[float]
    total_at_least: NotRequired[Literal[True]]
    next_page_token: NotRequired[str]
    pins_enabled: NotRequired[bool]
    scope: NotRequired[Literal["shared", "all"]]
    external_listed: NotRequired[Literal[True]]


class ArtifactOutput3Read(TypedDict):
    url: str
    bytes: float
    code: float
    codeText: str
    result: str
    durationMs: float
    title: NotRequired[str]


class ArtifactOutput3ArtifactRead(TypedDict):
    slug: str
    ver: NotRequired[str]
    seeded: NotRequired[Literal[False]]


class ArtifactOutput3(TypedDict):
    read: ArtifactOutput3Read
    owned: NotRequired[bool]
    artifactRead: NotRequired[ArtifactOutput3ArtifactRead]


class ArtifactOutput4Watch(TypedDict):
    url: str
    watching: bool
    outcome: str
    reason: NotRequired[str]
    durable_skip_reason: NotRequired[str]
    task_id: NotRequired[str]
    since: NotRequired[float]
    token_expires_at: NotRequired[float]
    rail: NotRequired[str]
    trigger_id: NotRequired[str]
    durable_since: NotRequired[str]
    status: NotRequired[float]
    detail: NotRequired[str]
    note: NotRequired[str]
    events: NotRequired[list[str]]


class ArtifactOutput4(TypedDict):
    watch: ArtifactOutput4Watch


class ArtifactOutput5Unwatch(TypedDict):
    url: str
    was_watching: bool


class ArtifactOutput5(TypedDict):
    unwatch: ArtifactOutput5Unwatch


class ArtifactOutput6Watches1(TypedDict):
    url: str
    task_id: str
    since: float
    explicit: bool
    connected: bool
    connecting: NotRequired[bool]
    token_expires_at: float
    armed_via: NotRequired[str]


class ArtifactOutput6Watches2(TypedDict):
    url: str
    rail: Literal["durable_wake"]
    trigger_id: str
    since: str
    events: NotRequired[list[str]]
    restored: NotRequired[bool]


class ArtifactOutput6Watches3(TypedDict):
    url: str
    rail: Literal["live_stopped"]
    since: NotRequired[float]
    explicit: NotRequired[bool]
    armed_via: NotRequired[str]
    stop_kind: str


class ArtifactOutput6Arms(TypedDict):
    url: str
    rail: NotRequired[str]
    state: str
    reconnect: NotRequired[bool]
    failures: NotRequired[float]
    max_failures: NotRequired[float]
    next_in_s: NotRequired[float]
    last_failure: NotRequired[str]
    reason: NotRequired[str]
    detail: NotRequired[str]
    server_message: NotRequired[str]
    at: NotRequired[float]


class ArtifactOutput6(TypedDict):
    watches: list[ArtifactOutput6Watches1 | ArtifactOutput6Watches2 | ArtifactOutput6Watches3]
    filter_url: NotRequired[str]
    arms: NotRequired[list[ArtifactOutput6Arms]]


class ArtifactOutput7Written(TypedDict):
    url: str


class ArtifactOutput7AssetUpload(TypedDict):
    id: str
    url: str
    size_bytes: float
    content_type: str
    sha256: NotRequired[str]
    file_name: str


class ArtifactOutput7(TypedDict):
    written: NotRequired[ArtifactOutput7Written]
    owned: NotRequired[bool]
    asset_upload: ArtifactOutput7AssetUpload


class ArtifactOutput8AssetUploadsResultsUploaded(TypedDict):
    file_path: str
    status: Literal["uploaded"]
    id: str
    url: str
    size_bytes: float
    content_type: str
    sha256: NotRequired[str]
    file_name: str


class ArtifactOutput8AssetUploadsResultsFailed(TypedDict):
    file_path: str
    status: Literal["failed", "not_attempted"]
    reason: str
    message: str
    may_be_stored: NotRequired[Literal[True]]


class ArtifactOutput8AssetUploads(TypedDict):
    url: str
    results: list[
        ArtifactOutput8AssetUploadsResultsUploaded
        | ArtifactOutput8AssetUploadsResultsFailed
        | list[ArtifactOutput8AssetUploadsResultsUploaded | ArtifactOutput8AssetUploadsResultsFailed]
    ]


class ArtifactOutput8(TypedDict):
    written: NotRequired[ArtifactOutput7Written]
    owned: NotRequired[bool]
    asset_uploads: ArtifactOutput8AssetUploads


class ArtifactOutput9AssetListAssets(TypedDict):
    id: str
    url: str
    content_type: str
    size_bytes: float
    sha256: NotRequired[str]
    created_at: str


class ArtifactOutput9AssetListUsage(TypedDict):
    files: float
    bytes: float
    max_files: float
    max_bytes: float


class ArtifactOutput9AssetList(TypedDict):
    url: str
    assets: list[ArtifactOutput9AssetListAssets]
    usage: ArtifactOutput9AssetListUsage
    next: NotRequired[str]
    cowritten: NotRequired[Literal[True]]
    outside_writer: NotRequired[Literal[True]]


class ArtifactOutput9(TypedDict):
    asset_list: ArtifactOutput9AssetList


class ArtifactOutput10AssetRead(TypedDict):
    id: str
    path: str
    size_bytes: float
    content_type: str
    sha256: str
    cowritten: NotRequired[Literal[True]]
    outside_writer: NotRequired[Literal[True]]
    public_read: NotRequired[Literal[True]]
    foreign: NotRequired[Literal[True]]


class ArtifactOutput10(TypedDict):
    asset_read: ArtifactOutput10AssetRead


class ArtifactOutput11AssetDelete(TypedDict):
    id: str
    deleted: bool


class ArtifactOutput11(TypedDict):
    written: NotRequired[ArtifactOutput7Written]
    owned: NotRequired[bool]
    asset_delete: ArtifactOutput11AssetDelete


class ArtifactOutput12Pin(TypedDict):
    action: Literal["pin", "unpin"]
    url: str
    pinned: bool
    title: NotRequired[str]


class ArtifactOutput12(TypedDict):
    pin: ArtifactOutput12Pin


ArtifactOutput: TypeAlias = (
    ArtifactOutput1
    | ArtifactOutput2
    | ArtifactOutput3
    | ArtifactOutput4
    | ArtifactOutput5
    | ArtifactOutput6
    | ArtifactOutput7
    | ArtifactOutput8
    | ArtifactOutput9
    | ArtifactOutput10
    | ArtifactOutput11
    | ArtifactOutput12
)


class ProjectsOutput1Docs(TypedDict):
    path: str
    created_at: str | None


class ProjectsOutput1Files(TypedDict):
    path: str
    file_kind: str
    created_at: str | None


class ProjectsOutput1SyncSources(TypedDict):
    type: str | None
    config: dict[str, Any]


class ProjectsOutput1Knowledge(TypedDict):
    knowledge_size: float
    max_knowledge_size: float


class ProjectsOutput1(TypedDict):
    method: Literal["project_info"]
    notice: NotRequired[str]
    local_file: NotRequired[str]
    name: str
    description: str
    instructions: str
    docs: list[ProjectsOutput1Docs]
    files: NotRequired[list[ProjectsOutput1Files]]
    sync_sources: NotRequired[list[ProjectsOutput1SyncSources]]
    knowledge: ProjectsOutput1Knowledge


class ProjectsOutput2(TypedDict):
    method: Literal["project_read"]
    notice: NotRequired[str]
    path: str
    file_kind: NotRequired[str]
    content: NotRequired[str]
    local_file: NotRequired[str]
    created_at: str | None


class ProjectsOutput3Hits(TypedDict):
    name: NotRequired[str]
    doc_uuid: NotRequired[str]
    text: NotRequired[str]
    image_attached: NotRequired[bool]
    page: NotRequired[float]


class ProjectsOutput3(TypedDict):
    method: Literal["project_search"]
    notice: NotRequired[str]
    rag: bool
    hits: NotRequired[list[ProjectsOutput3Hits]]
    docs: NotRequired[list[str]]


class ProjectsOutput4(TypedDict):
    method: Literal["project_write"]
    notice: NotRequired[str]
    path: str
    doc_uuid: str
    replaced: bool
    present_to_user: NotRequired[bool]
    local_path: NotRequired[str]


class ProjectsOutput5(TypedDict):
    method: Literal["project_delete"]
    notice: NotRequired[str]
    path: str
    deleted: bool


class ProjectsOutput6Files(TypedDict):
    path: str
    size_bytes: float
    updated_at: str | None
    truncated: bool


class ProjectsOutput6(TypedDict):
    method: Literal["project_memory_list"]
    notice: NotRequired[str]
    files: list[ProjectsOutput6Files]
    truncated: bool


class ProjectsOutput7(TypedDict):
    method: Literal["project_memory_read"]
    notice: NotRequired[str]
    path: str
    content: NotRequired[str]
    local_file: NotRequired[str]
    size_bytes: float
    updated_at: str | None
    truncated: bool


ProjectsOutput: TypeAlias = (
    ProjectsOutput1
    | ProjectsOutput2
    | ProjectsOutput3
    | ProjectsOutput4
    | ProjectsOutput5
    | ProjectsOutput6
    | ProjectsOutput7
)


class AgentInput(TypedDict):
    description: str
    prompt: str
    subagent_type: NotRequired[str]
    model: NotRequired[Literal["sonnet", "opus", "haiku", "fable"]]
    effort: NotRequired[Literal["low", "medium", "high", "xhigh", "max"]]
    run_in_background: NotRequired[bool]
    name: NotRequired[str]
    team_name: NotRequired[str]
    mode: NotRequired[Literal["acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "plan"]]
    isolation: NotRequired[Literal["worktree", "remote"]]


class BashInput(TypedDict):
    command: str
    timeout: NotRequired[float]
    description: NotRequired[str]
    run_in_background: NotRequired[bool]
    dangerouslyDisableSandbox: NotRequired[bool]


class ExitPlanModeInputAllowedPrompts(TypedDict):
    tool: Literal["Bash"]
    prompt: str


class ExitPlanModeInput(TypedDict):
    allowedPrompts: NotRequired[list[ExitPlanModeInputAllowedPrompts]]


class FileEditInput(TypedDict):
    file_path: str
    old_string: str
    new_string: str
    replace_all: NotRequired[bool]


class FileReadInput(TypedDict):
    file_path: str
    offset: NotRequired[float]
    limit: NotRequired[float]
    pages: NotRequired[str]
    allow_large: NotRequired[bool]


class FileWriteInput(TypedDict):
    file_path: str
    content: str


class GlobInput(TypedDict):
    pattern: str
    path: NotRequired[str]


GrepInput = TypedDict(
    "GrepInput",
    {
        "pattern": str,
        "path": NotRequired[str],
        "glob": NotRequired[str],
        "output_mode": NotRequired[Literal["content", "files_with_matches", "count"]],
        "-B": NotRequired[float],
        "-A": NotRequired[float],
        "-C": NotRequired[float],
        "context": NotRequired[float],
        "-n": NotRequired[bool],
        "-i": NotRequired[bool],
        "-o": NotRequired[bool],
        "type": NotRequired[str],
        "head_limit": NotRequired[float],
        "offset": NotRequired[float],
        "multiline": NotRequired[bool],
    },
)


class TaskStopInput(TypedDict):
    task_id: NotRequired[str]
    shell_id: NotRequired[str]


class ListMcpResourcesInput(TypedDict):
    server: NotRequired[str]


class RefreshMcpToolsInput(TypedDict):
    server: NotRequired[str]


McpInput: TypeAlias = dict[str, Any]


class NotebookEditInput(TypedDict):
    notebook_path: str
    cell_id: NotRequired[str]
    new_source: str
    cell_type: NotRequired[Literal["code", "markdown"]]
    edit_mode: NotRequired[Literal["replace", "insert", "delete"]]


class ReadMcpResourceDirInput(TypedDict):
    server: str
    uri: str


class ReadMcpResourceInput(TypedDict):
    server: str
    uri: str


class ReportFindingsInputFindings(TypedDict):
    file: str
    line: NotRequired[float]
    summary: str
    short_summary: NotRequired[str]
    failure_scenario: str
    category: NotRequired[str]
    severity: NotRequired[Literal["important", "pre_existing", "nit"]]
    verdict: NotRequired[Literal["CONFIRMED", "PLAUSIBLE"]]
    outcome: NotRequired[Literal["fixed", "skipped", "no_change_needed"]]


class ReportFindingsInput(TypedDict):
    level: NotRequired[Literal["low", "medium", "high", "xhigh", "max"]]
    findings: list[ReportFindingsInputFindings]


class TodoWriteInputTodos(TypedDict):
    content: str
    status: Literal["pending", "in_progress", "completed"]
    activeForm: str


class TodoWriteInput(TypedDict):
    todos: list[TodoWriteInputTodos]


class WebFetchInput(TypedDict):
    url: str
    prompt: str
    offset: NotRequired[float]


class WebSearchInput(TypedDict):
    query: str
    allowed_domains: NotRequired[list[str]]
    blocked_domains: NotRequired[list[str]]


class AskUserQuestionInputQuestions1Options1(TypedDict):
    label: str
    description: str
    preview: NotRequired[str]


class AskUserQuestionInputQuestions1(TypedDict):
    question: str
    header: str
    options: list[AskUserQuestionInputQuestions1Options1]
    multiSelect: bool


class AskUserQuestionInputAnnotations(TypedDict):
    preview: NotRequired[str]
    notes: NotRequired[str]


class AskUserQuestionInputMetadata(TypedDict):
    source: NotRequired[str]


class AskUserQuestionInput(TypedDict):
    questions: list[AskUserQuestionInputQuestions1]
    answers: NotRequired[dict[str, str]]
    annotations: NotRequired[dict[str, AskUserQuestionInputAnnotations]]
    metadata: NotRequired[AskUserQuestionInputMetadata]


class SendFeedbackInput(TypedDict):
    type: Literal["bug", "idea", "missing_capability"]
    title: str
    details: str
    area: NotRequired[str]
    failure_mode: NotRequired[
        Literal[
            "instruction_following",
            "destructive_actions",
            "code_quality",
            "repetition_and_looping",
            "model_regression",
            "overconfidence_and_hallucination",
            "context_and_memory",
            "overeager",
            "over_correction",
            "stopping_short",
            "dispute_or_decline",
            "subagent_overspawn",
            "tone_or_preachiness",
            "excessive_questions",
            "unwanted_scope",
            "other",
        ]
    ]
    task_category: NotRequired[Literal["code_edit", "debug", "explain", "plan", "shell", "search", "review", "other"]]


class ClaudeDesignInput(TypedDict):
    operation: str
    arguments: dict[str, Any]


class ProjectsInput(TypedDict):
    method: Literal[
        "project_info",
        "project_read",
        "project_search",
        "project_write",
        "project_delete",
        "project_memory_list",
        "project_memory_read",
    ]
    path: NotRequired[str]
    content: NotRequired[str]
    local_path: NotRequired[str]
    present_to_user: NotRequired[bool]
    query: NotRequired[str]
    n: NotRequired[float]


class EnterPlanModeInput(TypedDict):
    pass


class TaskCreateInput(TypedDict):
    subject: str
    description: str
    activeForm: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


class TaskGetInput(TypedDict):
    taskId: str


class TaskUpdateInput(TypedDict):
    taskId: str
    subject: NotRequired[str]
    description: NotRequired[str]
    activeForm: NotRequired[str]
    status: NotRequired[Literal["pending", "in_progress", "completed", "deleted"]]
    addBlocks: NotRequired[list[str]]
    addBlockedBy: NotRequired[list[str]]
    owner: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]


class TaskListInput(TypedDict):
    pass


class WorkflowInput(TypedDict):
    script: NotRequired[str]
    name: NotRequired[str]
    description: NotRequired[str]
    title: NotRequired[str]
    args: NotRequired[dict[str, Any]]
    scriptPath: NotRequired[str]
    resumeFromRunId: NotRequired[str]


class CronCreateInput(TypedDict):
    cron: str
    prompt: str
    recurring: NotRequired[bool]
    durable: NotRequired[bool]


class CronDeleteInput(TypedDict):
    id: str


class CronListInput(TypedDict):
    pass


class ScheduleWakeupInput(TypedDict):
    delaySeconds: NotRequired[float]
    reason: NotRequired[str]
    prompt: NotRequired[str]
    stop: NotRequired[bool]
    noop: NotRequired[bool]


class RemoteTriggerInput(TypedDict):
    action: Literal["list", "get", "create", "update", "run", "create_webhook_trigger", "list_runs", "get_run_log"]
    trigger_id: NotRequired[str]
    session_id: NotRequired[str]
    cursor: NotRequired[str]
    body: NotRequired[dict[str, Any]]


class ShowOnboardingRolePickerInput(TypedDict):
    pass


class OfferChromeSetupInput(TypedDict):
    reason: NotRequired[str]


class ReadNotificationsInput(TypedDict):
    pass


class MonitorInputWs(TypedDict):
    url: str
    protocols: NotRequired[list[str]]


class MonitorInput(TypedDict):
    description: str
    timeout_ms: float
    command: NotRequired[str]
    ws: NotRequired[MonitorInputWs]


class ProposeSkillsInputProposals1Edits(TypedDict):
    old_string: str
    new_string: str


class ProposeSkillsInputProposals1(TypedDict):
    name: str
    kind: Literal["new", "improvement"]
    target: NotRequired[str]
    description: str
    evidence: NotRequired[list[str]]
    edits: NotRequired[list[ProposeSkillsInputProposals1Edits | list[ProposeSkillsInputProposals1Edits]]]
    skillMd: NotRequired[str]


class ProposeSkillsInput(TypedDict):
    proposals: list[ProposeSkillsInputProposals1]


class ProposeGoalInput(TypedDict):
    condition: str
    ask_user: NotRequired[bool]


class ArtifactInput(TypedDict):
    action: NotRequired[
        Literal[
            "publish",
            "list",
            "read",
            "list_types",
            "watch",
            "unwatch",
            "status",
            "upload_asset",
            "list_assets",
            "read_asset",
            "delete_asset",
            "pin",
            "unpin",
        ]
    ]
    file_path: NotRequired[str]
    favicon: NotRequired[str]
    icon: NotRequired[str]
    limit: NotRequired[float]
    page_token: NotRequired[str]
    scope: NotRequired[Literal["mine", "shared", "all"]]
    title: NotRequired[str]
    description: NotRequired[str]
    label: NotRequired[str]
    url: NotRequired[str]
    prompt: NotRequired[str]
    force: NotRequired[bool]
    pin: NotRequired[bool]
    out_dir: NotRequired[str]
    file_paths: NotRequired[list[str | list[str]]]
    asset_id: NotRequired[str]
    after: NotRequired[str]
    capabilities: NotRequired[dict[str, Any]]
    contract: NotRequired[Literal["latest"] | str]


class PushNotificationInput(TypedDict):
    message: str
    status: NotRequired[Literal["proactive"]]


class EnterWorktreeInput(TypedDict):
    name: NotRequired[str]
    path: NotRequired[str]


class ExitWorktreeInput(TypedDict):
    action: Literal["keep", "remove"]
    discard_changes: NotRequired[bool]


class BashOutputGitOperationCommit(TypedDict):
    sha: str
    kind: Literal["committed", "amended", "cherry-picked"]
    branch: NotRequired[str]


class BashOutputGitOperationPush(TypedDict):
    branch: str


class BashOutputGitOperationBranch(TypedDict):
    ref: str
    action: Literal["merged", "rebased"]


class BashOutputGitOperationPr(TypedDict):
    number: float
    url: NotRequired[str]
    action: Literal[
        "created",
        "edited",
        "merged",
        "commented",
        "closed",
        "reopened",
        "ready",
        "draft",
        "auto-merge-enabled",
        "auto-merge-disabled",
    ]


class BashOutputGitOperation(TypedDict):
    commit: NotRequired[BashOutputGitOperationCommit]
    push: NotRequired[BashOutputGitOperationPush]
    branch: NotRequired[BashOutputGitOperationBranch]
    pr: NotRequired[BashOutputGitOperationPr]


class BashOutput(TypedDict):
    stdout: str
    stderr: str
    rawOutputPath: NotRequired[str]
    interrupted: bool
    isImage: NotRequired[bool]
    backgroundTaskId: NotRequired[str]
    backgroundedByUser: NotRequired[bool]
    timedOutAfterMs: NotRequired[float]
    backgroundCwdHint: NotRequired[str]
    backgroundEndsWithFinalResponse: NotRequired[Literal[True]]
    backgroundWakesOwner: NotRequired[Literal[True]]
    dangerouslyDisableSandbox: NotRequired[bool]
    returnCodeInterpretation: NotRequired[str]
    noOutputExpected: NotRequired[bool]
    structuredContent: NotRequired[list[Any]]
    persistedOutputPath: NotRequired[str]
    persistedOutputSize: NotRequired[float]
    staleReadFileStateHint: NotRequired[str]
    ghRateLimitHint: NotRequired[str]
    gitOperation: NotRequired[BashOutputGitOperation]


class ExitPlanModeOutput(TypedDict):
    plan: str | None
    isAgent: bool
    filePath: NotRequired[str]
    hasTaskTool: NotRequired[bool]
    planWasEdited: NotRequired[bool]
    awaitingLeaderApproval: NotRequired[bool]
    requestId: NotRequired[str]


class FileEditOutputStructuredPatch(TypedDict):
    oldStart: float
    oldLines: float
    newStart: float
    newLines: float
    lines: list[str]


class FileEditOutputGitDiff(TypedDict):
    filename: str
    status: Literal["modified", "added"]
    additions: float
    deletions: float
    changes: float
    patch: str
    repository: NotRequired[str | None]


class FileEditOutput(TypedDict):
    filePath: str
    oldString: str
    newString: str
    originalFile: str | None
    structuredPatch: list[FileEditOutputStructuredPatch]
    userModified: bool
    replaceAll: bool
    gitDiff: NotRequired[FileEditOutputGitDiff]
    staged: NotRequired[bool]


class FileWriteOutput(TypedDict):
    type: Literal["create", "update"]
    filePath: str
    content: str
    structuredPatch: list[FileEditOutputStructuredPatch]
    originalFile: str | None
    gitDiff: NotRequired[FileEditOutputGitDiff]
    userModified: NotRequired[bool]
    staged: NotRequired[bool]


class GlobOutput(TypedDict):
    durationMs: float
    numFiles: float
    filenames: list[str]
    truncated: bool
    totalMatches: NotRequired[float]
    countIsComplete: NotRequired[bool]
    timedOut: NotRequired[bool]


class GrepOutput(TypedDict):
    mode: NotRequired[Literal["content", "files_with_matches", "count"]]
    numFiles: float
    filenames: list[str]
    content: NotRequired[str]
    numLines: NotRequired[float]
    numMatches: NotRequired[float]
    totalFiles: NotRequired[float]
    totalLines: NotRequired[float]
    appliedLimit: NotRequired[float]
    appliedOffset: NotRequired[float]
    timedOut: NotRequired[bool]


class TaskStopOutput(TypedDict):
    message: str
    task_id: str
    task_type: str
    command: NotRequired[str]


class NotebookEditOutput(TypedDict):
    new_source: str
    old_source: NotRequired[str]
    cell_id: NotRequired[str]
    cell_type: Literal["code", "markdown"]
    language: str
    edit_mode: str
    error: NotRequired[str]
    notebook_path: str
    original_file: str
    updated_file: str


class ReadMcpResourceDirOutputResources(TypedDict):
    uri: str
    name: str
    mimeType: NotRequired[str]


class ReadMcpResourceDirOutput(TypedDict):
    resources: list[ReadMcpResourceDirOutputResources]
    error: NotRequired[str]


class ReadMcpResourceOutputContents(TypedDict):
    uri: str
    mimeType: NotRequired[str]
    text: NotRequired[str]
    blobSavedTo: NotRequired[str]


class ReadMcpResourceOutput(TypedDict):
    contents: list[ReadMcpResourceOutputContents]
    error: NotRequired[str]


class ReportFindingsOutput(TypedDict):
    count: float
    level: NotRequired[Literal["low", "medium", "high", "xhigh", "max"]]
    findings: list[ReportFindingsInputFindings]


class TodoWriteOutput(TypedDict):
    oldTodos: list[TodoWriteInputTodos]
    newTodos: list[TodoWriteInputTodos]


class WebFetchOutput(TypedDict):
    bytes: float
    code: float
    codeText: str
    result: str
    durationMs: float
    url: str
    artifactRead: NotRequired[ArtifactOutput3ArtifactRead]


class WebSearchOutputResults1Content(TypedDict):
    title: str
    url: str
    snippet: NotRequired[str]


class WebSearchOutputResults1(TypedDict):
    tool_use_id: str
    content: list[WebSearchOutputResults1Content]


class WebSearchOutput(TypedDict):
    query: str
    results: list[WebSearchOutputResults1 | str]
    durationSeconds: float
    searchCount: NotRequired[float]


class AskUserQuestionOutputAnnotations(TypedDict):
    preview: NotRequired[str]
    notes: NotRequired[str]
    unanswered: NotRequired[Literal["skipped", "replied_in_chat", "dismissed"]]


class AskUserQuestionOutput(TypedDict):
    questions: list[AskUserQuestionInputQuestions1]
    answers: dict[str, str]
    response: NotRequired[str]
    annotations: NotRequired[dict[str, AskUserQuestionOutputAnnotations]]
    afkTimeoutMs: NotRequired[float]


class SendFeedbackOutput(TypedDict):
    success: bool
    message: str


class EnterWorktreeOutput(TypedDict):
    worktreePath: str
    worktreeBranch: NotRequired[str]
    message: str


class ExitWorktreeOutput(TypedDict):
    action: Literal["keep", "remove"]
    originalCwd: str
    worktreePath: str
    worktreeBranch: NotRequired[str]
    tmuxSessionName: NotRequired[str]
    discardedFiles: NotRequired[float]
    discardedCommits: NotRequired[float]
    message: str


class TaskCreateOutputTask(TypedDict):
    id: str
    subject: str
    description: NotRequired[str]


class TaskCreateOutput(TypedDict):
    task: TaskCreateOutputTask


class TaskGetOutputTaskPending(TypedDict):
    id: str
    subject: str
    description: str
    status: Literal["pending", "in_progress", "completed"]
    blocks: list[str]
    blockedBy: list[str]


class TaskGetOutput(TypedDict):
    task: TaskGetOutputTaskPending | None


TaskUpdateOutputStatusChange = TypedDict(
    "TaskUpdateOutputStatusChange",
    {
        "from": str,
        "to": str,
    },
)


class TaskUpdateOutput(TypedDict):
    success: bool
    taskId: str
    updatedFields: list[str]
    error: NotRequired[str]
    statusChange: NotRequired[TaskUpdateOutputStatusChange]


class TaskListOutputTasks(TypedDict):
    id: str
    subject: str
    status: Literal["pending", "in_progress", "completed"]
    owner: NotRequired[str]
    blockedBy: list[str]


class TaskListOutput(TypedDict):
    tasks: list[TaskListOutputTasks]


class RemoteTriggerOutput(TypedDict):
    status: float
    json: str
    summary: NotRequired[str]


class ShowOnboardingRolePickerOutput(TypedDict):
    role: NotRequired[str]
    dismissed: NotRequired[bool]


class OfferChromeSetupOutput(TypedDict):
    outcome: Literal["connected", "not_now", "no_attempt_yet"]


class ReadNotificationsOutputNotifications(TypedDict):
    notification_id: str
    origin: str
    queued_at: str
    content: str
    arrived_at: NotRequired[str]


class ReadNotificationsOutput(TypedDict):
    notifications: list[ReadNotificationsOutputNotifications]
    remaining: float
    read_at: NotRequired[str]


class ScheduleWakeupOutput(TypedDict):
    scheduledFor: float
    clampedDelaySeconds: float
    wasClamped: bool
    stopped: NotRequired[bool]
    cancelledWakeups: NotRequired[float]


class MonitorOutput(TypedDict):
    taskId: str
    timeoutMs: float
    persistent: NotRequired[bool]
    keptInSandboxByCheck: NotRequired[bool]


class ProposeSkillsOutput(TypedDict):
    proposalCount: float


class ProposeGoalOutput(TypedDict):
    condition: str
    askUser: bool


class EnterPlanModeOutput(TypedDict):
    message: str


class WorkflowOutput(TypedDict):
    status: Literal["async_launched", "remote_launched"]
    taskId: str
    taskType: NotRequired[Literal["local_workflow", "remote_agent"]]
    workflowName: NotRequired[str]
    runId: NotRequired[str]
    summary: NotRequired[str]
    transcriptDir: NotRequired[str]
    scriptPath: NotRequired[str]
    sessionUrl: NotRequired[str]
    warning: NotRequired[str]
    error: NotRequired[str]


class CronCreateOutputOtherOneShots(TypedDict):
    id: str
    humanSchedule: str
    prompt: str


class CronCreateOutput(TypedDict):
    id: str
    humanSchedule: str
    recurring: bool
    durable: NotRequired[bool]
    nextFireAt: NotRequired[float]
    maxAgeMs: NotRequired[float]
    otherOneShots: NotRequired[list[CronCreateOutputOtherOneShots]]


class CronDeleteOutput(TypedDict):
    id: str
    endedLoopWakeup: NotRequired[Literal[True]]


class CronListOutputJobs(TypedDict):
    id: str
    cron: str
    humanSchedule: str
    prompt: str
    recurring: NotRequired[bool]
    durable: NotRequired[bool]
    nextFireAt: NotRequired[float]


class CronListOutput(TypedDict):
    jobs: list[CronListOutputJobs]


class PushNotificationOutput(TypedDict):
    message: str
    pushSent: NotRequired[bool]
    localSent: NotRequired[bool]
    disabledReason: NotRequired[Literal["config_off", "user_present", "no_transport"]]
    sentAt: NotRequired[str]


class ClaudeDesignOutput(TypedDict):
    operation: str
    content: list[dict[str, Any]]
    isError: NotRequired[bool]


BuiltinCall: TypeAlias = (
    Call[Literal["Agent"], AgentInput, AgentOutput]
    | Call[Literal["Artifact"], ArtifactInput, ArtifactOutput]
    | Call[Literal["AskUserQuestion"], AskUserQuestionInput, AskUserQuestionOutput]
    | Call[Literal["Bash"], BashInput, BashOutput]
    | Call[Literal["ClaudeDesign"], ClaudeDesignInput, ClaudeDesignOutput]
    | Call[Literal["CronCreate"], CronCreateInput, CronCreateOutput]
    | Call[Literal["CronDelete"], CronDeleteInput, CronDeleteOutput]
    | Call[Literal["CronList"], CronListInput, CronListOutput]
    | Call[Literal["Edit"], FileEditInput, FileEditOutput]
    | Call[Literal["EnterPlanMode"], EnterPlanModeInput, EnterPlanModeOutput]
    | Call[Literal["EnterWorktree"], EnterWorktreeInput, EnterWorktreeOutput]
    | Call[Literal["ExitPlanMode"], ExitPlanModeInput, ExitPlanModeOutput]
    | Call[Literal["ExitWorktree"], ExitWorktreeInput, ExitWorktreeOutput]
    | Call[Literal["Glob"], GlobInput, GlobOutput]
    | Call[Literal["Grep"], GrepInput, GrepOutput]
    | Call[Literal["ListMcpResourcesTool"], ListMcpResourcesInput, ListMcpResourcesOutput]
    | Call[Literal["Monitor"], MonitorInput, MonitorOutput]
    | Call[Literal["NotebookEdit"], NotebookEditInput, NotebookEditOutput]
    | Call[Literal["OfferChromeSetup"], OfferChromeSetupInput, OfferChromeSetupOutput]
    | Call[Literal["Projects"], ProjectsInput, ProjectsOutput]
    | Call[Literal["PushNotification"], PushNotificationInput, PushNotificationOutput]
    | Call[Literal["Read"], FileReadInput, FileReadOutput]
    | Call[Literal["ReadMcpResourceDirTool"], ReadMcpResourceDirInput, ReadMcpResourceDirOutput]
    | Call[Literal["ReadMcpResourceTool"], ReadMcpResourceInput, ReadMcpResourceOutput]
    | Call[Literal["ReadNotifications"], ReadNotificationsInput, ReadNotificationsOutput]
    | Call[Literal["RemoteTrigger"], RemoteTriggerInput, RemoteTriggerOutput]
    | Call[Literal["ReportFindings"], ReportFindingsInput, ReportFindingsOutput]
    | Call[Literal["ScheduleWakeup"], ScheduleWakeupInput, ScheduleWakeupOutput]
    | Call[Literal["SendFeedback"], SendFeedbackInput, SendFeedbackOutput]
    | Call[Literal["ShowOnboardingRolePicker"], ShowOnboardingRolePickerInput, ShowOnboardingRolePickerOutput]
    | Call[Literal["TaskCreate"], TaskCreateInput, TaskCreateOutput]
    | Call[Literal["TaskGet"], TaskGetInput, TaskGetOutput]
    | Call[Literal["TaskList"], TaskListInput, TaskListOutput]
    | Call[Literal["TaskStop"], TaskStopInput, TaskStopOutput]
    | Call[Literal["TaskUpdate"], TaskUpdateInput, TaskUpdateOutput]
    | Call[Literal["TodoWrite"], TodoWriteInput, TodoWriteOutput]
    | Call[Literal["WebFetch"], WebFetchInput, WebFetchOutput]
    | Call[Literal["WebSearch"], WebSearchInput, WebSearchOutput]
    | Call[Literal["Workflow"], WorkflowInput, WorkflowOutput]
    | Call[Literal["Write"], FileWriteInput, FileWriteOutput]
    | Call[Literal["propose_skills"], ProposeSkillsInput, ProposeSkillsOutput]
)
"""A call of one of the tools whose input is declared; type checkers narrow it by `name`."""

TYPED_TOOLS = frozenset(
    [
        "Agent",
        "Artifact",
        "AskUserQuestion",
        "Bash",
        "ClaudeDesign",
        "CronCreate",
        "CronDelete",
        "CronList",
        "Edit",
        "EnterPlanMode",
        "EnterWorktree",
        "ExitPlanMode",
        "ExitWorktree",
        "Glob",
        "Grep",
        "ListMcpResourcesTool",
        "Monitor",
        "NotebookEdit",
        "OfferChromeSetup",
        "Projects",
        "PushNotification",
        "Read",
        "ReadMcpResourceDirTool",
        "ReadMcpResourceTool",
        "ReadNotifications",
        "RemoteTrigger",
        "ReportFindings",
        "ScheduleWakeup",
        "SendFeedback",
        "ShowOnboardingRolePicker",
        "TaskCreate",
        "TaskGet",
        "TaskList",
        "TaskStop",
        "TaskUpdate",
        "TodoWrite",
        "WebFetch",
        "WebSearch",
        "Workflow",
        "Write",
        "propose_skills",
    ]
)

BUILTIN_TOOL_NAMES = frozenset(
    [
        "Agent",
        "Artifact",
        "AskUserQuestion",
        "Bash",
        "ClaudeDesign",
        "CronCreate",
        "CronDelete",
        "CronList",
        "Edit",
        "EndConversation",
        "EnterPlanMode",
        "EnterWorktree",
        "ExitPlanMode",
        "ExitWorktree",
        "Glob",
        "Grep",
        "LSP",
        "ListAgents",
        "ListMcpResourcesTool",
        "Monitor",
        "NotebookEdit",
        "OfferChromeSetup",
        "PowerShell",
        "Projects",
        "PushNotification",
        "Read",
        "ReadMcpResourceDirTool",
        "ReadMcpResourceTool",
        "ReadNotifications",
        "RemoteTrigger",
        "ReportFindings",
        "ScheduleWakeup",
        "SendFeedback",
        "SendMessage",
        "SendUserFile",
        "SendUserMessage",
        "SetGoal",
        "ShareOnboardingGuide",
        "ShowOnboardingRolePicker",
        "Skill",
        "SubagentHandback",
        "TaskCreate",
        "TaskGet",
        "TaskList",
        "TaskStop",
        "TaskUpdate",
        "TodoWrite",
        "ToolSearch",
        "WaitForMcpServers",
        "WebFetch",
        "WebSearch",
        "Workflow",
        "Write",
        "propose_skills",
    ]
)
"""Every tool of this version, also those whose input is not declared."""

LEGACY_TOOL_NAME_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "Task": "Agent",
        "KillShell": "TaskStop",
        "KillBash": "TaskStop",
        "ListPeers": "ListAgents",
        "Brief": "SendUserMessage",
        "ListMcpResources": "ListMcpResourcesTool",
        "ReadMcpResource": "ReadMcpResourceTool",
        "ReadMcpResourceDir": "ReadMcpResourceDirTool",
        "ProposeGoal": "SetGoal",
    }
)
"""Former names that rules, hook matchers and lists of tools still accept, and the names today."""
