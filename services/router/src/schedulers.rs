//! One stream for each scheduler replica that lives: storage tells which do.

use std::collections::HashMap;

use backoff::Backoff;
use proto::internal::v1::{SchedulerReplica, WatchSchedulersRequest};
use rpc::RECONNECT_MAX;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

use crate::app::DialScheduler;
use crate::clients::{MessageStoreClient, Told, keep_open, scheduler};
use crate::driver::Event;
use delivery::core::Input;

/// The streams that are kept. They end with it.
pub(crate) struct Schedulers {
    dial: DialScheduler,
    events: mpsc::Sender<Event>,
    kept: HashMap<String, Kept>,
    tasks: JoinSet<()>,
}

struct Kept {
    address: String,
    task: AbortHandle,
}

impl Schedulers {
    pub(crate) fn new(dial: DialScheduler, events: mpsc::Sender<Event>) -> Self {
        Self { dial, events, kept: HashMap::new(), tasks: JoinSet::new() }
    }

    /// Follows storage's list for ever. While it cannot be heard, the streams stay as they are.
    pub(crate) async fn follow(mut self, mut storage: MessageStoreClient) {
        let mut backoff = Backoff::up_to(RECONNECT_MAX);
        loop {
            let following = async {
                let mut lists = storage.watch_schedulers(WatchSchedulersRequest {}).await?.into_inner();
                while let Some(list) = lists.message().await? {
                    backoff.reset();
                    self.change(list.replicas).await;
                }
                Ok::<_, Status>(())
            };
            match following.await {
                Ok(()) => tracing::info!("storage ended its list of schedulers"),
                Err(status) => tracing::warn!(%status, "the list of schedulers cannot be followed"),
            }
            backoff.pause().await;
        }
    }

    async fn change(&mut self, replicas: Vec<SchedulerReplica>) {
        let lives = |name: &str, address: &str| {
            replicas.iter().any(|replica| replica.name == name && replica.address == address)
        };
        let gone = self.kept.extract_if(|name, kept| !lives(name, &kept.address));
        for (name, kept) in gone.collect::<Vec<_>>() {
            kept.task.abort();
            // What it said last comes before this.
            while !kept.task.is_finished() && self.tasks.join_next().await.is_some() {}
            // The driver lives as long as this does.
            self.events.send(Event::SchedulerDown(name)).await.ok();
        }
        let names = replicas.iter().map(|replica| replica.name.clone()).collect();
        self.events.send(Event::Input(Input::Schedulers(names))).await.ok();
        for replica in replicas {
            self.keep(replica);
        }
        while self.tasks.try_join_next().is_some() {}
    }

    fn keep(&mut self, replica: SchedulerReplica) {
        if self.kept.contains_key(&replica.name) {
            return;
        }
        let channel = match (self.dial)(&replica) {
            Ok(channel) => channel,
            Err(error) => {
                let SchedulerReplica { name, address } = replica;
                tracing::error!(name, address, %error, "a scheduler cannot be spoken to");
                return;
            }
        };
        let client = scheduler(channel);
        let submitting = client.clone();
        let open = move |outgoing: UnboundedReceiverStream<_>| {
            let mut client = client.clone();
            async move { client.report(outgoing).await }
        };
        let [up, says, down] = [(); 3].map(|()| replica.name.clone());
        let told = Told {
            up: Box::new(move |sender| Event::SchedulerUp(up.clone(), sender, submitting.clone())),
            item: Box::new(move |said| Event::Input(Input::Scheduler(says.clone(), said))),
            down: Box::new(move |()| Event::SchedulerDown(down.clone())),
        };
        let keeping = keep_open("scheduler", open, None, None, told, self.events.clone());
        let task = self.tasks.spawn(keeping);
        self.kept.insert(replica.name, Kept { address: replica.address, task });
    }
}
