//! Blobs.

use std::time::Duration;

use bytes::Bytes;
use keys::Layout;
use kv::Cmd;
use model::limits::{BLOB_CHUNK_BYTES, FILE_BYTES_MAX};
use model::{BlobHash, Timestamp};
use proto::internal::v1 as wire;
use proto::v1;
use tonic::Code;

use crate::places::{Redis, scenarios};
use crate::stage::{CONTEXT, EXECUTOR, READER, Running, Stage, failure, json};

fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect::<Vec<_>>().into()
}

fn pieces(whole: &Bytes, sha256: &str) -> Vec<v1::PutBlobRequest> {
    whole
        .chunks(BLOB_CHUNK_BYTES)
        .map(|piece| v1::PutBlobRequest {
            context_id: CONTEXT,
            sha256: sha256.to_owned(),
            data: whole.slice_ref(piece),
        })
        .collect()
}

async fn get(stage: &Stage<impl Redis>, hash: BlobHash) -> Vec<u8> {
    let get = v1::GetBlobRequest { context_id: CONTEXT, sha256: hash.to_string() };
    let mut parts = stage.jobs(READER).get_blob(get).await.unwrap().into_inner();
    let mut whole = Vec::new();
    while let Some(part) = parts.message().await.unwrap() {
        assert!(part.data.len() <= BLOB_CHUNK_BYTES);
        whole.extend_from_slice(&part.data);
    }
    whole
}

async fn what_was_put_comes_back(stage: Stage<impl Redis>) {
    for len in [0, 1, BLOB_CHUNK_BYTES, 2 * BLOB_CHUNK_BYTES + 7] {
        let whole = bytes(len);
        let mut parts = pieces(&whole, "");
        if parts.is_empty() {
            parts.push(v1::PutBlobRequest { context_id: CONTEXT, ..Default::default() });
        }
        let put = stage.jobs(EXECUTOR).put_blob(tokio_stream::iter(parts)).await.unwrap().into_inner();
        let blob = put.blob.unwrap();
        assert_eq!(
            (blob.sha256.as_str(), blob.size),
            (BlobHash::of(&whole).to_string().as_str(), len as u64)
        );
        assert_eq!(get(&stage, BlobHash::of(&whole)).await, whole);
        let key = stage.keys().blob_chunk(BlobHash::of(&whole), 0);
        assert!(stage.command(Cmd::new("TTL").arg(&key)).await.int().unwrap() < 0, "it is kept");
    }
    assert_eq!(stage.command(Cmd::new("ZCARD").arg(&stage.keys().blob_idle())).await.int(), Ok(4));
}

async fn wrong_hashes_and_sizes_are_refused(stage: Stage<impl Redis>) {
    let wrong = BlobHash::of(b"other").to_string();
    let put = stage.jobs(EXECUTOR).put_blob(tokio_stream::iter(pieces(&bytes(10), &wrong))).await;
    assert_eq!(failure(put).0, Code::InvalidArgument);
    let large = pieces(&bytes(FILE_BYTES_MAX + 1), "");
    let put = stage.jobs(EXECUTOR).put_blob(tokio_stream::iter(large)).await;
    assert_eq!(failure(put), (Code::ResourceExhausted, "LIMIT_EXCEEDED".to_owned()));
    let get = v1::GetBlobRequest { context_id: CONTEXT, sha256: wrong };
    assert_eq!(failure(stage.jobs(READER).get_blob(get).await).0, Code::NotFound);
    assert_eq!(stage.command(Cmd::new("KEYS").arg(&stage.key_of("blob*"))).await.texts(), Ok(Vec::new()));
}

async fn a_gateway_writes_and_reads_in_pieces(stage: Stage<impl Redis>) {
    let whole = bytes(2 * BLOB_CHUNK_BYTES + 100);
    let hash = BlobHash::of(&whole);
    let write = |place: usize, sha256: BlobHash| {
        let offset = place * BLOB_CHUNK_BYTES;
        wire::WriteBlobRequest {
            context_uid: stage.context_uid.clone(),
            context_id: CONTEXT,
            sha256: sha256.to_string(),
            size: whole.len() as u64,
            offset: offset as u64,
            data: whole.slice(offset..whole.len().min(offset + BLOB_CHUNK_BYTES)),
        }
    };
    assert_eq!(failure(stage.blobs().write_blob(write(2, hash)).await).0, Code::InvalidArgument);
    for place in [0, 1, 1, 2, 2] {
        let result = stage.blobs().write_blob(write(place, hash)).await;
        // The last piece again, without those before it.
        assert_eq!(result.is_ok(), place < 2 || get_size(&stage, hash).await.is_some());
        if place == 2 {
            break;
        }
    }
    assert_eq!(get(&stage, hash).await, whole);
    let read = |offset: u64| wire::ReadBlobRequest {
        context_uid: stage.context_uid.clone(),
        context_id: CONTEXT,
        sha256: hash.to_string(),
        offset,
    };
    let last = stage.blobs().read_blob(read(2 * BLOB_CHUNK_BYTES as u64)).await.unwrap().into_inner();
    assert_eq!((last.data.len(), last.size), (100, whole.len() as u64));
    assert_eq!(failure(stage.blobs().read_blob(read(1)).await).0, Code::InvalidArgument);
    let other = BlobHash::of(b"other");
    for place in 0..2 {
        stage.blobs().write_blob(write(place, other)).await.unwrap();
    }
    assert_eq!(failure(stage.blobs().write_blob(write(2, other)).await).0, Code::InvalidArgument);
    let missing = wire::ReadBlobRequest { sha256: other.to_string(), ..read(0) };
    assert_eq!(failure(stage.blobs().read_blob(missing).await), (Code::NotFound, "BLOB_MISSING".to_owned()));
}

async fn get_size(stage: &Stage<impl Redis>, hash: BlobHash) -> Option<u64> {
    stage.command(Cmd::new("HGET").arg(&stage.keys().blob(hash)).arg("size")).await.uint().ok()
}

#[tokio::test]
async fn the_coordinator_keeps_its_name() {
    let mut stage = Stage::new(Layout::Database).await;
    let ask = |stage: &Stage| stage.redis.raw(0, &["HGET", "coordinator", "id"]);
    let first = ask(&stage);
    assert!(first.starts_with("$32\r\n"), "{first}");
    stage.start().await;
    assert_eq!(ask(&stage), first);
}

/// Puts a blob and gives its hash.
async fn put(stage: &Stage<impl Redis>, whole: &Bytes) -> BlobHash {
    let put = stage.jobs(EXECUTOR).put_blob(tokio_stream::iter(pieces(whole, ""))).await.unwrap();
    put.into_inner().blob.unwrap().sha256.parse().unwrap()
}

fn minutes(minutes: u64) -> Timestamp {
    Timestamp::now() + Duration::from_secs(minutes * 60)
}

async fn a_blob_without_references_goes_after_ten_minutes(stage: Stage<impl Redis>) {
    let (used, idle) = (put(&stage, &bytes(7)).await, put(&stage, &bytes(BLOB_CHUNK_BYTES + 1)).await);
    let spec = v1::JobSpec {
        script_type: v1::ScriptType::Shell.into(),
        script: Some(v1::Script {
            source: Some(v1::script::Source::Blob(v1::BlobRef { sha256: used.to_string(), size: 7 })),
        }),
        ..Default::default()
    };
    let job = v1::CreateJobRequest { context_id: CONTEXT, spec: Some(spec), ..Default::default() };
    let job = stage.jobs(EXECUTOR).create_job(job).await.unwrap().into_inner().job.unwrap();
    let early = stage.sweep(minutes(9)).await;
    assert_eq!(early.blobs, 0);
    assert!(early.next.is_some_and(|next| next > minutes(9) && next < minutes(11)), "{early:?}");
    assert_eq!(stage.sweep(minutes(11)).await.blobs, 1);
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&stage.keys().blob(idle))).await.int(), Ok(0));
    for n in 0..2 {
        let chunk = Cmd::new("EXISTS").arg(&stage.keys().blob_chunk(idle, n));
        assert_eq!(stage.command(chunk).await.int(), Ok(0));
    }
    assert_eq!(get(&stage, used).await, bytes(7));
    // With the job its blob is idle, from then on.
    let delete = v1::DeleteJobRequest { context_id: CONTEXT, job_id: job.id, ..Default::default() };
    stage.jobs(EXECUTOR).delete_job(delete).await.unwrap();
    let swept = stage.sweep(minutes(11)).await;
    assert_eq!((swept.blobs, swept.next), (1, None));
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&stage.keys().blob(used))).await.int(), Ok(0));
}

/// The report of the attempt that left it may be late.
async fn an_output_waits_a_day_for_its_report(stage: Stage<impl Redis>) {
    let whole = bytes(11);
    let write = wire::WriteBlobRequest {
        context_uid: stage.context_uid.clone(),
        context_id: CONTEXT,
        sha256: BlobHash::of(&whole).to_string(),
        size: whole.len() as u64,
        offset: 0,
        data: whole.clone(),
    };
    stage.blobs().write_blob(write).await.unwrap();
    // An actor that puts the same does not shorten that.
    assert_eq!(put(&stage, &whole).await, BlobHash::of(&whole));
    assert_eq!(stage.sweep(minutes(23 * 60)).await.blobs, 0);
    assert_eq!(stage.sweep(minutes(25 * 60)).await.blobs, 1);
    assert_eq!(stage.counted("blob_bytes").await, 0);
}

async fn a_sweep_looks_again(stage: Stage<impl Redis>) {
    let hash = put(&stage, &bytes(9)).await;
    // As if it had been entered before a job referred to it.
    stage.command(Cmd::new("SADD").arg(&stage.keys().blob_refs(hash)).arg(&stage.key_of("job:2:1"))).await;
    let later = Timestamp::now() + Duration::from_secs(48 * 3600);
    let swept = stage.sweep(later).await;
    assert_eq!((swept.blobs, swept.next), (0, None));
    assert_eq!(get(&stage, hash).await, bytes(9));
    // What was put again since is kept.
    stage.command(Cmd::new("DEL").arg(&stage.keys().blob_refs(hash))).await;
    put(&stage, &bytes(9)).await;
    assert_eq!(stage.sweep(minutes(9)).await.blobs, 0);
    assert_eq!(stage.sweep(later).await.blobs, 1);
}

async fn a_blob_has_no_more_chunks_than_it_may(stage: Stage<impl Redis>) {
    let hash = put(&stage, &bytes(9)).await;
    stage.command(Cmd::new("HSET").arg(&stage.keys().blob(hash)).arg("chunks").arg("1e300")).await;
    assert_eq!(stage.sweep(Timestamp::now() + Duration::from_secs(48 * 3600)).await.blobs, 1);
}

async fn many_idle_blobs_go_in_parts(stage: Stage<impl Redis>) {
    for len in 1..=60 {
        put(&stage, &bytes(len)).await;
    }
    assert_eq!(stage.sweep(Timestamp::now() + Duration::from_secs(48 * 3600)).await.blobs, 60);
    assert_eq!(stage.command(Cmd::new("EXISTS").arg(&stage.keys().blob_idle())).await.int(), Ok(0));
}

/// A step with so many events.
async fn add_events(stage: &Stage<impl Redis>, flow: &mut Running, count: usize) {
    let event = format!(r#"{{"kind":"node","flow_id":{}}}"#, flow.id);
    let node = wire::NodeCommit {
        job_id: flow.first_job,
        node_json: json(&flow.node(0)),
        job_status: "started".to_owned(),
        events: vec![event.into_bytes().into(); count],
        ..Default::default()
    };
    let step = wire::CommitRequest { nodes: vec![node], ..flow.step() };
    stage.apply(flow, step).await;
}

fn days(days: u64) -> Timestamp {
    Timestamp::now() + Duration::from_secs(days * 24 * 3600)
}

async fn old_events_go_where_nothing_happens(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    add_events(&stage, &mut flow, 300).await;
    add_events(&stage, &mut flow, 1).await;
    // However often it is read meanwhile.
    for day in [0, 3, 6] {
        assert_eq!(stage.sweep(days(day)).await.events, 0);
    }
    let swept = stage.sweep(days(8)).await.events;
    assert!(swept > 200, "{swept} went");
}

async fn a_change_without_an_event_does_not_move_the_end_of_the_stream(stage: Stage<impl Redis>) {
    let mut flow = stage.started(1).await;
    let before = stage.settle_one(&mut flow).await;
    stage.sweep(days(0)).await;
    stage.sweep(days(8)).await;
    let count = stage.command(Cmd::new("XLEN").arg(&stage.keys().events())).await.int().unwrap();
    assert!(count > 0, "the last one stays: by it a store that went back is recognised");
    let watch = wire::WatchEventsRequest { context_id: CONTEXT, on_behalf_of: READER, ..Default::default() };
    let mut events = stage.flows().watch_events(watch).await.unwrap().into_inner();
    let begin = events.message().await.unwrap().unwrap().position;
    assert!(begin.starts_with(&format!("{before}.")), "{begin}");
}

async fn old_events_go_but_for_the_last(stage: Stage<impl Redis>) {
    for _ in 0..300 {
        stage.created(1).await;
    }
    let before = stage.command(Cmd::new("XLEN").arg(&stage.keys().events())).await.int().unwrap();
    assert!(before > 500);
    // How far they had come is marked; a week later it is known what is old.
    assert_eq!(stage.sweep(days(0)).await.events, 0);
    stage.created(1).await;
    assert_eq!(stage.sweep(days(6)).await.events, 0);
    let swept = stage.sweep(days(8)).await.events;
    let left = stage.command(Cmd::new("XLEN").arg(&stage.keys().events())).await.int().unwrap();
    assert!(swept > 300 && left >= 1, "{swept} went, {left} are left");
    let last = stage
        .command(Cmd::new("XREVRANGE").arg(&stage.keys().events()).arg("+").arg("-").arg("COUNT").arg(1));
    assert!(!last.await.array().unwrap().is_empty());
}

scenarios!(
    what_was_put_comes_back,
    wrong_hashes_and_sizes_are_refused,
    a_gateway_writes_and_reads_in_pieces,
    a_blob_without_references_goes_after_ten_minutes,
    an_output_waits_a_day_for_its_report,
    a_sweep_looks_again,
    many_idle_blobs_go_in_parts,
    old_events_go_where_nothing_happens,
    a_change_without_an_event_does_not_move_the_end_of_the_stream,
    a_blob_has_no_more_chunks_than_it_may,
    old_events_go_but_for_the_last
);
