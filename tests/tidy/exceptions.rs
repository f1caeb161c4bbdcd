//! Exceptions from the rules, with their reasons.

/// One file, or one folder, that may break one rule.
pub(crate) struct Exception {
    /// The rule, by the name its test gives.
    pub(crate) rule: &'static str,
    /// A file from the root of the repository; a folder when it ends with `/`.
    pub(crate) path: &'static str,
    /// Why it may. For whoever reads this file.
    #[expect(dead_code, reason = "an exception without a reason does not compile; nothing else reads it")]
    pub(crate) reason: &'static str,
}

impl Exception {
    /// Returns true if the exception lets `path` break `rule`.
    pub(crate) fn covers(&self, rule: &str, path: &str) -> bool {
        self.rule == rule && (self.path == path || (self.path.ends_with('/') && path.starts_with(self.path)))
    }
}

/// All of them.
pub(crate) const EXCEPTIONS: &[Exception] = &[
    Exception {
        rule: "sleeps",
        path: "tests/faults/src/client.rs",
        reason: "a fault lasts as long as its seed says, and clients that were refused leave a busy machine to others",
    },
    Exception {
        rule: "sleeps",
        path: "tests/bench/src/steady.rs",
        reason: "a client pauses before it repeats a call, or resumes a watch, while the suite that it loads is restarted",
    },
    Exception {
        rule: "sleeps",
        path: "tests/bench/src/saga/growth.rs",
        reason: "what idle lanes cost is measured over a span of time in which nothing happens",
    },
    Exception {
        rule: "terminal",
        path: "services/mycora/src/output/terminal.rs",
        reason: "it is the writer",
    },
    Exception {
        rule: "terminal",
        path: "services/mycora/src/output/live.rs",
        reason: "it asks whether there is a terminal, and draws a picture on it whose texts it makes drawable",
    },
    Exception {
        rule: "terminal",
        path: "services/mycora/src/command/submit/",
        reason: "bars of transfers: their texts are their own, or were made drawable",
    },
    Exception {
        rule: "terminal",
        path: "services/mycora/src/command/context/moving_progress.rs",
        reason: "a line of numbers about a transfer",
    },
    Exception {
        rule: "purity",
        path: "libs/model/src/id.rs",
        reason: "`Uid::random` is where ids come from; whoever calls it is impure, and `flow` may not",
    },
    Exception {
        rule: "purity",
        path: "libs/model/src/time.rs",
        reason: "`Timestamp::now` is where the clock is read; whoever calls it is impure, and `flow` may not",
    },
    Exception {
        rule: "wire types",
        path: "libs/directory/src/",
        reason: "a client of storage that every service shares: what could not be asked is a status, as for their callers",
    },
    Exception {
        rule: "wire types",
        path: "libs/testkit/src/collector.rs",
        reason: "a server of OTLP for tests, which keeps what it is sent: the wire format is all of it",
    },
    Exception {
        rule: "wire types",
        path: "libs/archive/src/",
        reason: "what a frame says is a message: it is parsed here, once, for storage and for the command line",
    },
    Exception {
        rule: "wire types",
        path: "libs/flow-file/src/",
        reason: "it makes the request that submits a flow, and nothing else",
    },
    Exception {
        rule: "wire types",
        path: "services/mycora/src/",
        reason: "the command line is a client: requests, answers and the descriptor set are its matter",
    },
    Exception {
        rule: "wire types",
        path: "services/saga/src/command_service.rs",
        reason: "commands of aggregates go out and their receipts come in here, and nowhere else",
    },
    Exception {
        rule: "wire types",
        path: "services/saga/src/providers/flow/client.rs",
        reason: "effects that are flows are calls to this suite: requests go out and answers come in here, and nowhere else",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/changes/",
        reason: "checks requests and cuts them into the calls of storage; large flows are not copied into a third shape",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/commit.rs",
        reason: "builds the commit where its size is known: a copy between would cost each step twice",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/commit_link.rs",
        reason: "keeps the commit stream open and sorts its answers; the stream's ends are tonic's",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/driver.rs",
        reason: "passes commits on unread",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/driver/",
        reason: "passes commits on unread",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/error.rs",
        reason: "takes the status of a failed call to storage apart",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/loader.rs",
        reason: "reads the stream of a flow's nodes, and turns each into the model at once",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/log_reads.rs",
        reason: "numbers queries for routers, and hands their answers to who asked",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/replica.rs",
        reason: "keeps the lease's stream open, and turns its news into events at once",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/report_streams.rs",
        reason: "holds the streams to the connected routers",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/runners.rs",
        reason: "reads the registry's stream, and turns each record into the model at once",
    },
    Exception {
        rule: "wire types",
        path: "services/scheduler/src/views/",
        reason: "reads flows, logs and events from storage and writes answers: streams in, streams out",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/core.rs",
        reason: "its inputs and effects are frames of its streams: executions pass through as bytes, a second set of types would only be copied",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/core/attempts.rs",
        reason: "a part of the core",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/core/opaque_messages.rs",
        reason: "takes mail and jobs as storage gives them, and gives them out as the gateway takes them",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/opaque_messages.rs",
        reason: "mail and jobs stay as storage gave them: the router reads when they expire, no more",
    },
    Exception {
        rule: "wire types",
        path: "services/router/src/submissions.rs",
        reason: "hands jobs to a scheduler as storage gave them",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/core/abandonment.rs",
        reason: "a part of the core",
    },
    Exception {
        rule: "wire types",
        path: "services/router/src/driver.rs",
        reason: "sorts frames onto the streams they belong to",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/context_drops.rs",
        reason: "passes commands of storage on to the gateway, and answers back",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/log_reads.rs",
        reason: "passes queries of schedulers on to the gateway, and answers back unread",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/message.rs",
        reason: "reads a held message apart, once",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/reports.rs",
        reason: "numbers reports anew and passes them on unread",
    },
    Exception {
        rule: "wire types",
        path: "libs/delivery/src/runners.rs",
        reason: "reads the registry's stream, and keeps of each record what routing needs",
    },
    Exception {
        rule: "wire types",
        path: "services/router/src/schedulers.rs",
        reason: "follows the list of schedulers, and keeps a stream to each",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/log_reads.rs",
        reason: "turns what a router wants read into a call, and the answer into a frame",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/delivery.rs",
        reason: "turns what a router wants delivered into calls; executions stay the bytes they came as",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/supervisor_api.rs",
        reason: "turns what supervisors say into frames for routers, and their blobs into calls of storage",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/inline.rs",
        reason: "reads blobs from storage piece by piece",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/peers.rs",
        reason: "reads the registry's stream, and keeps of each record what the conversation needs",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/presence.rs",
        reason: "tells the registry what was heard",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/routers.rs",
        reason: "numbers frames for each router's stream",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/stops.rs",
        reason: "gathers what routers want stopped, by supervisor",
    },
    Exception {
        rule: "wire types",
        path: "services/mycelium-gateway/src/commands.rs",
        reason: "turns what a router wants of supervisors into calls, and their answers into frames",
    },
];
