//! The tails of what attempts print.

use model::limits::{LOG_TAIL_BYTES_MAX, LOG_TIMES_MAX};
use model::{FlowUid, JobKey};
use proto::convert::time;
use proto::internal::v1 as wire;
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, READER, Running, STRANGER, Stage, failure};

fn key(stage: &Stage<impl Redis>, flow: &Running) -> JobKey {
    JobKey {
        context: stage.context_uid.parse().unwrap(),
        flow: flow.uid.parse().unwrap(),
        job: model::JobId(flow.first_job),
        attempt: model::Attempt(1),
    }
}

async fn append(stage: &Stage<impl Redis>, flow: &Running, key: JobKey, pieces: &[(u64, &[u8])]) {
    let chunk = |(offset, data): &(u64, &[u8])| wire::LogChunk {
        job_key: key.to_string(),
        context_id: CONTEXT,
        flow_id: flow.id,
        offset: *offset,
        data: data.to_vec().into(),
        runner_id: 0,
        print_millis: 0,
    };
    let request = wire::AppendLogsRequest { chunks: pieces.iter().map(chunk).collect() };
    stage.messages().append_logs(request).await.unwrap();
}

fn read(flow: &Running, offset: u64, actor: u32) -> wire::ReadLogRequest {
    wire::ReadLogRequest {
        context_id: CONTEXT,
        flow_id: flow.id,
        job_id: flow.first_job,
        attempt: 1,
        offset,
        on_behalf_of: actor,
    }
}

async fn tail(stage: &Stage<impl Redis>, flow: &Running, offset: u64) -> (u64, Vec<u8>) {
    let log = stage.flows().read_log(read(flow, offset, READER)).await.unwrap().into_inner();
    (log.offset, log.data.to_vec())
}

async fn pieces_are_joined_once(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let key = key(&stage, &flow);
    assert_eq!(tail(&stage, &flow, 0).await, (0, Vec::new()));
    append(&stage, &flow, key, &[(0, b"one "), (4, b"\xfftwo ")]).await;
    let before = stage.revision().await;
    append(&stage, &flow, key, &[(0, b"one "), (4, b"\xfftwo ")]).await;
    assert_eq!(stage.revision().await, before, "the same pieces again change nothing");
    append(&stage, &flow, key, &[(4, b"\xfftwo three")]).await;
    assert_eq!(tail(&stage, &flow, 0).await, (0, b"one \xfftwo three".to_vec()));
    assert_eq!(tail(&stage, &flow, 9).await, (9, b"three".to_vec()));
    assert_eq!(tail(&stage, &flow, 99).await, (99, Vec::new()));
    // A gap: what came before it is dropped.
    append(&stage, &flow, key, &[(100, b"late")]).await;
    assert_eq!(tail(&stage, &flow, 0).await, (100, b"late".to_vec()));
    assert_eq!(failure(stage.flows().read_log(read(&flow, 0, STRANGER)).await).0, Code::NotFound);
}

async fn a_piece_that_was_overtaken_is_not_lost(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let key = key(&stage, &flow);
    append(&stage, &flow, key, &[(4, b"two ")]).await;
    assert_eq!(tail(&stage, &flow, 0).await, (4, b"two ".to_vec()));
    append(&stage, &flow, key, &[(0, b"one ")]).await;
    assert_eq!(tail(&stage, &flow, 0).await, (0, b"one two ".to_vec()));
    let before = stage.revision().await;
    append(&stage, &flow, key, &[(0, b"one "), (4, b"two "), (2, b"e tw")]).await;
    assert_eq!(stage.revision().await, before, "the same pieces again change nothing");
    // Both sides at once, and one that does not reach what is kept.
    append(&stage, &flow, key, &[(21, b"late"), (8, b"x"), (14, b"before lately")]).await;
    assert_eq!(tail(&stage, &flow, 0).await, (14, b"before lately".to_vec()));
}

async fn only_the_tail_is_kept(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let piece = vec![b'x'; 50_000];
    append(&stage, &flow, key(&stage, &flow), &[(0, &piece), (50_000, &piece), (100_000, b"end")]).await;
    let (offset, data) = tail(&stage, &flow, 0).await;
    assert_eq!((offset, data.len()), (100_003 - LOG_TAIL_BYTES_MAX as u64, LOG_TAIL_BYTES_MAX));
    assert!(data.ends_with(b"xend"));
}

async fn the_last_runner_that_sent_a_log_is_known(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let job_key = key(&stage, &flow).to_string();
    let append = async |offset, runner_id| {
        let data = b"x".as_slice().into();
        let chunk = wire::LogChunk {
            job_key: job_key.clone(),
            context_id: CONTEXT,
            flow_id: flow.id,
            offset,
            data,
            runner_id,
            print_millis: 0,
        };
        stage.messages().append_logs(wire::AppendLogsRequest { chunks: vec![chunk] }).await.unwrap();
        stage.flows().read_log(read(&flow, 0, READER)).await.unwrap().into_inner().runner_id
    };
    assert_eq!(append(0, 0).await, 0);
    assert_eq!(append(1, 7).await, 7);
    assert_eq!(append(2, 0).await, 7, "whoever does not say it changes nothing");
    assert_eq!(append(3, 9).await, 9);
}

async fn it_is_known_when_it_was_printed(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let job_key = key(&stage, &flow).to_string();
    let append = async |pieces: &[(u64, u64, &[u8])]| {
        let chunk = |&(offset, print_millis, data): &(u64, u64, &[u8])| wire::LogChunk {
            job_key: job_key.clone(),
            context_id: CONTEXT,
            flow_id: flow.id,
            offset,
            data: data.to_vec().into(),
            runner_id: 0,
            print_millis,
        };
        let chunks = pieces.iter().map(chunk).collect();
        stage.messages().append_logs(wire::AppendLogsRequest { chunks }).await.unwrap();
    };
    let times = async |offset| -> Vec<(u64, u64)> {
        let log = stage.flows().read_log(read(&flow, offset, READER)).await.unwrap().into_inner();
        log.times.iter().map(|at| (at.offset, time::required(at.time).as_millis())).collect()
    };
    append(&[(4, 2000, b"two ")]).await;
    // A time that was overtaken, one that came before, one that was not noted, and one of a wrong clock.
    append(&[(0, 1000, b"one "), (4, 9000, b"two "), (8, 0, b"x"), (9, u64::MAX, b"y"), (10, 3500, b"z")])
        .await;
    assert_eq!(times(0).await, [(0, 1000), (4, 2000), (10, 3500)]);
    assert_eq!(times(7).await, [(4, 2000), (10, 3500)]);
    // Also of what is not kept here any more.
    let large = vec![b'x'; LOG_TAIL_BYTES_MAX];
    append(&[(11, 4000, &large)]).await;
    assert_eq!(times(0).await, [(0, 1000), (4, 2000), (10, 3500), (11, 4000)]);
    // They are bounded; what is new is known exactly.
    let mut end = 11 + LOG_TAIL_BYTES_MAX as u64;
    for second in 5..5 + 2 * LOG_TIMES_MAX as u64 / 64 {
        let pieces: Vec<_> = (0..64).map(|n| (end + n, 1000 * second + n, &b"."[..])).collect();
        append(&pieces).await;
        end += 64;
    }
    let kept = times(0).await;
    assert!(kept.len() <= LOG_TIMES_MAX && kept.len() > LOG_TIMES_MAX / 4, "{}", kept.len());
    assert!(kept.is_sorted() && kept[0] == (0, 1000), "{kept:?}");
    let newest: Vec<u64> = kept.iter().rev().take(100).map(|(byte, _)| end - byte).collect();
    assert_eq!(newest, (1..=100).collect::<Vec<_>>());
}

async fn what_belongs_to_another_flow_is_dropped(stage: Stage<impl Redis>) {
    let flow = stage.started(1).await;
    let mut other = key(&stage, &flow);
    other.flow = FlowUid::random();
    append(&stage, &flow, other, &[(0, b"x")]).await;
    let mut unknown = key(&stage, &flow);
    unknown.job = model::JobId(flow.first_job + 1);
    append(&stage, &flow, unknown, &[(0, b"x")]).await;
    assert_eq!(tail(&stage, &flow, 0).await, (0, Vec::new()));
}

scenarios!(
    pieces_are_joined_once,
    a_piece_that_was_overtaken_is_not_lost,
    only_the_tail_is_kept,
    the_last_runner_that_sent_a_log_is_known,
    it_is_known_when_it_was_printed,
    what_belongs_to_another_flow_is_dropped
);
