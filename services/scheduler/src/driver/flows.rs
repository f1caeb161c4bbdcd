//! Flows come into memory and leave it.

use flow::engine::{Engine, Input};
use model::NodeState;

use super::{Driver, Event, StartedFlow};
use crate::loader::{self, Loaded, Reading};
use crate::run::{FlowKey, Phase, Run};

impl Driver {
    /// A flow was made here: it is owned already.
    pub(super) fn started(&mut self, started: StartedFlow) {
        let key = (started.flow.context_id, started.flow.id);
        if self.flows.get(&key).is_some_and(|run| !matches!(run.phase, Phase::Loading)) {
            // An earlier flow of this number is still being let go.
            return self.changed(key);
        }
        self.flows.entry(key).or_insert_with(Run::loading);
        self.loaded(key, Loaded::Flow(Box::new(started)));
    }

    /// Takes over a flow that runs, unless it is here already.
    pub(super) fn adopt(&mut self, key: FlowKey) {
        if self.flows.contains_key(&key) {
            return;
        }
        self.flows.insert(key, Run::loading());
        self.read(key, Reading::TakeOver);
    }

    /// Somebody else changed a flow: what is in memory is behind.
    pub(super) fn changed(&mut self, key: FlowKey) {
        let Some(run) = self.flows.get_mut(&key) else { return self.adopt(key) };
        run.reload = true;
        if matches!(run.phase, Phase::Idle(_)) {
            self.enqueue(key);
            if let Some(run) = self.flows.get_mut(&key) {
                run.more = true;
            }
        }
    }

    /// Reads a flow again that is ours.
    pub(super) fn read_again(&mut self, key: FlowKey, run: &mut Run) {
        self.uncount(key, run);
        if let Some(due) = run.due {
            self.due.remove(&(due, key));
        }
        run.start_over();
        self.read(key, Reading::Again);
    }

    fn read(&self, key: FlowKey, reading: Reading) {
        let (store, handle, owner) = (self.store.clone(), self.handle.clone(), self.owner);
        tokio::spawn(async move {
            let loaded = loader::load(store, key, reading, owner).await;
            handle.send(Event::Loaded(key, loaded)).await;
        });
    }

    /// A flow was read.
    pub(super) fn loaded(&mut self, key: FlowKey, loaded: Loaded) {
        let Some(mut run) = self.flows.remove(&key) else { return };
        if !matches!(run.phase, Phase::Loading) {
            self.flows.insert(key, run);
            return;
        }
        let started = match loaded {
            Loaded::Flow(started) => *started,
            Loaded::Gone => {
                self.forget(key, run);
                return;
            }
            Loaded::Elsewhere => {
                // Its owner has not heard what was said here: it has to be said again.
                self.abandon(key, run);
                return;
            }
        };
        let StartedFlow { context_uid, flow, nodes } = started;
        let engine = match Engine::load(context_uid, flow, nodes) {
            Ok(engine) => engine,
            Err(violations) => {
                tracing::error!(flow = %key.1, context = %key.0, %violations, "a stored flow cannot be read");
                self.forget(key, run);
                return;
            }
        };
        run.context_uid = Some(context_uid);
        for (node, runner) in engine.in_flight().filter_map(|attempt| Some((attempt.node, attempt.runner?))) {
            debug_assert_ne!(engine.node(node).state, NodeState::Ready);
            self.load.add(key.0, runner);
            run.placed.insert(node, runner);
        }
        run.phase = Phase::Idle(Box::new(engine));
        run.push(Input::Wake, None);
        run.more = true;
        self.flows.insert(key, run);
        self.enqueue(key);
    }

    /// A flow has ended or is gone: nothing about it matters any more.
    pub(super) fn forget(&mut self, key: FlowKey, mut run: Run) {
        for ack in run.take_all_acks() {
            self.routers.handled(ack);
        }
        self.abandon(key, run);
    }

    /// Lets a flow go without having stored what was reported of it.
    pub(super) fn abandon(&mut self, key: FlowKey, mut run: Run) {
        self.uncount(key, &mut run);
        if let Some(due) = run.due {
            self.due.remove(&(due, key));
        }
    }

    fn uncount(&mut self, key: FlowKey, run: &mut Run) {
        for (_, runner) in run.placed.drain() {
            self.load.remove(key.0, runner);
        }
    }
}
