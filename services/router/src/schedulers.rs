//! One stream for each live scheduler replica, by the list that storage sends.

use std::collections::HashMap;
use std::pin::pin;

use backoff::ExponentialBackoff;
use futures_util::future::{AbortHandle, Abortable, BoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use proto::internal::v1::{SchedulerReplica, WatchSchedulersRequest};
use rpc::RECONNECT_MAX;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

use crate::app::DialScheduler;
use crate::clients::{MessageStoreClient, StreamCallbacks, keep_stream_open, scheduler};
use crate::driver::RouterEvent;
use delivery::core::Input;

/// The streams that are kept, all of them where [`SchedulerStreams::follow`] runs.
pub(crate) struct SchedulerStreams {
    dial: DialScheduler,
    kept: HashMap<String, SchedulerStream>,
    streams: FuturesUnordered<Abortable<BoxFuture<'static, ()>>>,
}

struct SchedulerStream {
    address: String,
    stream: AbortHandle,
}

impl SchedulerStreams {
    pub(crate) fn new(dial: DialScheduler) -> Self {
        Self { dial, kept: HashMap::new(), streams: FuturesUnordered::new() }
    }

    /// Keeps a stream to each replica of storage's list, for ever. While the list cannot be read, the streams stay as they are.
    pub(crate) async fn follow(mut self, storage: MessageStoreClient, events: mpsc::Sender<RouterEvent>) {
        let mut lists = pin!(::rpc::producer_stream(1, |lists| watch_schedulers(storage, lists)));
        loop {
            tokio::select! {
                Some(replicas) = lists.next() => self.change(replicas, &events).await,
                Some(_) = self.streams.next(), if !self.streams.is_empty() => {}
            }
        }
    }

    async fn change(&mut self, replicas: Vec<SchedulerReplica>, events: &mpsc::Sender<RouterEvent>) {
        let lives = |name: &str, address: &str| {
            replicas.iter().any(|replica| replica.name == name && replica.address == address)
        };
        let gone = self.kept.extract_if(|name, kept| !lives(name, &kept.address));
        for (name, kept) in gone.collect::<Vec<_>>() {
            // The aborted stream sends no `SchedulerDown`, so it is sent here.
            kept.stream.abort();
            // The driver lives as long as this task.
            events.send(RouterEvent::SchedulerDown(name)).await.ok();
        }
        let names = replicas.iter().map(|replica| replica.name.clone()).collect();
        events.send(RouterEvent::Input(Input::Schedulers(names))).await.ok();
        for replica in replicas {
            self.keep(replica, events);
        }
    }

    fn keep(&mut self, replica: SchedulerReplica, events: &mpsc::Sender<RouterEvent>) {
        if self.kept.contains_key(&replica.name) {
            return;
        }
        let channel = match (self.dial)(&replica) {
            Ok(channel) => channel,
            Err(error) => {
                let SchedulerReplica { name, address } = replica;
                tracing::error!(name, address, %error, "cannot dial a scheduler");
                return;
            }
        };
        let client = scheduler(channel);
        let submitting = client.clone();
        let open = move |outgoing: UnboundedReceiverStream<_>| {
            let mut client = client.clone();
            async move { client.report(outgoing).await }
        };
        let [up, item, down] = [(); 3].map(|()| replica.name.clone());
        let callbacks = StreamCallbacks {
            up: Box::new(move |sender| RouterEvent::SchedulerUp(up.clone(), sender, submitting.clone())),
            item: Box::new(move |message| RouterEvent::Input(Input::Scheduler(item.clone(), message))),
            down: Box::new(move |()| RouterEvent::SchedulerDown(down.clone())),
        };
        let keeping = keep_stream_open("scheduler", open, None, None, callbacks, events.clone());
        let (keeping, stream) = abortable(keeping.boxed());
        self.streams.push(keeping);
        self.kept.insert(replica.name, SchedulerStream { address: replica.address, stream });
    }
}

/// Hands on each list of replicas that storage sends, for ever.
async fn watch_schedulers(mut storage: MessageStoreClient, to: mpsc::Sender<Vec<SchedulerReplica>>) {
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    loop {
        let reading = async {
            let mut lists = storage.watch_schedulers(WatchSchedulersRequest {}).await?.into_inner();
            while let Some(list) = lists.message().await? {
                backoff.reset();
                // Cannot fail: the reader of the lists polls this future, so it is still there.
                to.send(list.replicas).await.ok();
            }
            Ok::<_, Status>(())
        };
        match reading.await {
            Ok(()) => tracing::info!("storage ended its list of schedulers"),
            Err(status) => tracing::warn!(%status, "the list of schedulers cannot be read; retrying"),
        }
        backoff.pause().await;
    }
}
