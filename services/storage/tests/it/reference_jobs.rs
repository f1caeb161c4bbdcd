//! Random operations on jobs without a flow and on blobs against a short reference of what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use keys::{ContextKey, GlobalKey};
use model::limits::BLOB_CHUNK_BYTES;
use model::{ActorId, BlobHash, JobId, Timestamp};
use proptest::prelude::*;
use proto::v1;
use tonic::{Code, Status};

use crate::conformance::{self, Chances, End, Family, Kept, PastRequests, Requesting};
use crate::places::Redis;
use crate::stage::{ADMIN, CONTEXT, EXECUTOR, READER, STRANGER, Stage};

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Put,
    Create,
    Delete,
    Sweep,
    /// An earlier request, with the same body or with another one.
    Again,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    Create(v1::CreateJobRequest),
    Delete(v1::DeleteJobRequest),
}

impl Call {
    fn request_id(&self) -> &str {
        match self {
            Self::Create(request) => &request.request_id,
            Self::Delete(request) => &request.request_id,
        }
    }

    fn caller(&self, who: u32) -> u32 {
        let caller = match self {
            Self::Create(request) => request.caller_id,
            Self::Delete(request) => request.caller_id,
        };
        if caller == 0 { who } else { caller }
    }
}

#[derive(Debug)]
struct Job {
    spec: v1::JobSpec,
    blobs: BTreeSet<usize>,
}

pub(crate) struct Jobs {
    /// Blobs that may be put.
    bytes: Vec<Bytes>,
    /// Blobs that were put and are there.
    put: BTreeSet<usize>,
    jobs: BTreeMap<(u32, u32), Job>,
    /// The oldest first.
    order: Vec<(u32, u32)>,
    /// Jobs that requests made.
    made: BTreeMap<(u32, String), (u32, u32)>,
    revision: u64,
    past_requests: PastRequests<Call>,
}

impl Jobs {
    fn hash(&self, blob: usize) -> BlobHash {
        BlobHash::of(&self.bytes[blob])
    }

    fn blob_ref(&self, blob: usize) -> v1::BlobRef {
        v1::BlobRef { sha256: self.hash(blob).to_string(), size: self.bytes[blob].len() as u64 }
    }

    fn users(&self, blob: usize) -> usize {
        self.jobs.values().filter(|job| job.blobs.contains(&blob)).count()
    }

    /// Blobs that a job names, mostly such as are there.
    fn picked(&self, mask: u8) -> BTreeSet<usize> {
        let picked = (0..self.bytes.len()).filter(|blob| mask >> blob & 1 == 1);
        picked.filter(|blob| mask > 230 || self.put.contains(blob)).collect()
    }

    fn spec(&self, blobs: &BTreeSet<usize>) -> v1::JobSpec {
        let mut files = blobs.iter().map(|blob| (format!("f{blob}"), self.blob_ref(*blob)));
        // The first is the script.
        let source = match files.next() {
            Some((_, blob)) => v1::script::Source::Blob(blob),
            None => v1::script::Source::Text("true".to_owned()),
        };
        v1::JobSpec {
            script_type: v1::ScriptType::Shell.into(),
            script: Some(v1::Script { source: Some(source) }),
            files: files.collect(),
            ..Default::default()
        }
    }

    fn named(&self, spec: &v1::JobSpec) -> BTreeSet<usize> {
        let script = spec.script.as_ref().and_then(|script| script.source.as_ref());
        let script = match script {
            Some(v1::script::Source::Blob(blob)) => Some(blob),
            _ => None,
        };
        let named: Vec<&v1::BlobRef> = script.into_iter().chain(spec.files.values()).collect();
        (0..self.bytes.len()).filter(|blob| named.contains(&&self.blob_ref(*blob))).collect()
    }

    fn call(&self, op: &Chances<What>) -> Option<(u32, Call)> {
        let request_id = op.request_id();
        let caller_id = [0, op.who, EXECUTOR][op.object % 3];
        let call = match op.what {
            What::Create => {
                let spec = Some(self.spec(&self.picked(op.mask)));
                let request = v1::CreateJobRequest { request_id, context_id: CONTEXT, caller_id, spec };
                Call::Create(request)
            }
            What::Delete => {
                let (caller_id, job_id) = match self.order.iter().rev().nth(op.object % 12) {
                    Some((caller, id)) => (*caller, *id),
                    None => (caller_id, 99_999),
                };
                Call::Delete(v1::DeleteJobRequest { request_id, context_id: CONTEXT, caller_id, job_id })
            }
            What::Again => return self.past_requests.again(op, changed),
            What::Put | What::Sweep => return None,
        };
        Some((op.who, call))
    }

    fn assert_kept(&self, said: &v1::Job) {
        let kept = self.jobs.get(&(said.caller_id, said.id)).map(|job| &job.spec);
        assert_eq!((said.spec.as_ref(), said.status.as_str(), said.flow_id), (kept, "created", 0));
    }

    async fn put(&mut self, stage: &Stage<impl Redis>, who: u32, blob: usize) {
        let whole = self.bytes[blob].clone();
        let pieces = whole.chunks(BLOB_CHUNK_BYTES).map(|piece| v1::PutBlobRequest {
            context_id: CONTEXT,
            data: whole.slice_ref(piece),
            ..Default::default()
        });
        let pieces: Vec<_> = pieces.collect();
        let answer = stage.jobs(who).put_blob(tokio_stream::iter(pieces)).await;
        let expected = match who {
            ADMIN | EXECUTOR => End::Made,
            READER => End::DENIED,
            _ => End::UNSEEN,
        };
        if let Some(answer) = expected.meets(answer, &format!("{who} puts blob {blob}")) {
            assert_eq!(answer.into_inner().blob, Some(self.blob_ref(blob)));
            self.put.insert(blob);
        }
    }

    /// Sweeps 9 minutes from now, or 11 if `is_late`: then every unreferenced blob is old enough.
    async fn sweep(&mut self, stage: &Stage<impl Redis>, is_late: bool) {
        let minutes = if is_late { 11 } else { 9 };
        let swept = stage.sweep(Timestamp::now() + Duration::from_secs(minutes * 60)).await;
        let idle: BTreeSet<usize> = self.put.iter().copied().filter(|blob| self.users(*blob) == 0).collect();
        let goes = if is_late { idle.len() } else { 0 };
        assert_eq!((swept.blobs, swept.events), (goes as u64, 0));
        assert_eq!(swept.next.is_some(), goes < idle.len(), "{swept:?}");
        if is_late {
            self.put.retain(|blob| !idle.contains(blob));
        }
    }

    async fn check_blobs(&self, stage: &Stage<impl Redis>) {
        for blob in 0..self.bytes.len() {
            let get = v1::GetBlobRequest { context_id: CONTEXT, sha256: self.hash(blob).to_string() };
            let parts = stage.jobs(READER).get_blob(get.clone()).await;
            assert_eq!(parts.is_ok(), self.put.contains(&blob), "blob {blob}");
            if let Ok(parts) = parts {
                let (mut parts, mut whole) = (parts.into_inner(), Vec::new());
                while let Some(part) = parts.message().await.unwrap() {
                    whole.extend_from_slice(&part.data);
                }
                assert_eq!(whole, self.bytes[blob]);
            }
            let unseen = stage.jobs(STRANGER).get_blob(get).await;
            assert_eq!(unseen.err().map(|status| status.code()), Some(Code::NotFound));
        }
    }

    async fn check_jobs(&self, stage: &Stage<impl Redis>) {
        for caller_id in [0, ADMIN, EXECUTOR] {
            let (mut listed, mut page_token) = (Vec::new(), String::new());
            loop {
                let context_id = CONTEXT;
                let page =
                    v1::ListJobsRequest { context_id, page_size: 30, page_token, caller_id, flow_id: 0 };
                let page = stage.jobs(READER).list_jobs(page).await.unwrap().into_inner();
                page.jobs.iter().for_each(|job| self.assert_kept(job));
                listed.extend(page.jobs.iter().map(|job| (job.caller_id, job.id)));
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    break;
                }
            }
            let there = self.order.iter().rev().filter(|place| self.jobs.contains_key(place));
            let there: Vec<_> = there.filter(|place| [0, place.0].contains(&caller_id)).copied().collect();
            assert_eq!(listed, there, "the newest first");
        }
        for (caller_id, job_id) in self.order.iter().rev().take(20).copied() {
            let get = v1::GetJobRequest { context_id: CONTEXT, caller_id, job_id };
            let job = stage.jobs(READER).get_job(get).await;
            assert_eq!(job.is_ok(), self.jobs.contains_key(&(caller_id, job_id)));
            if let Ok(job) = job {
                self.assert_kept(&job.into_inner().job.unwrap());
            }
        }
    }
}

impl Requesting for Jobs {
    type Call = Call;
    type Answer = Option<v1::Job>;

    fn expect(&self, who: u32, call: &Call) -> End {
        let caller = call.caller(who);
        match who {
            STRANGER => return End::UNSEEN,
            READER => return End::DENIED,
            EXECUTOR if caller != EXECUTOR => return End::DENIED,
            _ => {}
        }
        let before = self.past_requests.before(who, call.request_id(), call);
        match call {
            Call::Create(request) => {
                let made = self.made.get(&(who, request.request_id.clone()));
                let named = self.named(request.spec.as_ref().unwrap());
                match before {
                    // What it made was removed.
                    Some(End::MadeBefore) if made.is_none_or(|job| !self.jobs.contains_key(job)) => {
                        End::UNSEEN
                    }
                    Some(end) => end,
                    None if named.is_subset(&self.put) => End::Made,
                    None => End::Refused(Code::FailedPrecondition, "BLOB_MISSING"),
                }
            }
            Call::Delete(request) => before.unwrap_or({
                let is_there = self.jobs.contains_key(&(caller, request.job_id));
                if is_there { End::Made } else { End::UNSEEN }
            }),
        }
    }

    async fn perform(
        &self,
        stage: &Stage<impl Redis>,
        who: u32,
        call: Call,
    ) -> Result<Option<v1::Job>, Status> {
        let mut jobs = stage.jobs(who);
        Ok(match call {
            Call::Create(request) => jobs.create_job(request).await?.into_inner().job,
            Call::Delete(request) => jobs.delete_job(request).await.map(|_| None)?,
        })
    }

    fn take(&mut self, who: u32, call: &Call, answer: &Option<v1::Job>) {
        self.revision += 1;
        match (call, answer) {
            (Call::Create(request), Some(job)) => {
                let spec = request.spec.clone().unwrap();
                let (place, blobs) = ((call.caller(who), job.id), self.named(&spec));
                assert!(self.jobs.insert(place, Job { spec, blobs }).is_none(), "no number is given twice");
                assert!(!self.order.contains(&place), "no number is given again");
                self.order.push(place);
                if !request.request_id.is_empty() {
                    self.made.insert((who, request.request_id.clone()), place);
                }
            }
            (Call::Delete(request), _) => {
                self.jobs.remove(&(call.caller(who), request.job_id)).unwrap();
            }
            (Call::Create(_), None) => panic!("no job was given"),
        }
        self.past_requests.remember(who, call.request_id(), call);
    }

    fn check_answer(&self, _: u32, _: &Call, answer: &Option<v1::Job>, _: End) {
        if let Some(job) = answer {
            self.assert_kept(job);
        }
    }
}

/// Another body under the same request id.
fn changed(mut call: Call) -> Call {
    match &mut call {
        Call::Create(request) => {
            request.spec.as_mut().unwrap().outputs.push("other".to_owned());
        }
        Call::Delete(request) => request.job_id += 1,
    }
    call
}

impl Family for Jobs {
    type Op = Chances<What>;

    fn any_op() -> impl Strategy<Value = Chances<What>> {
        let what = prop_oneof![
            4 => Just(What::Put),
            4 => Just(What::Create),
            3 => Just(What::Delete),
            1 => Just(What::Sweep),
            3 => Just(What::Again),
        ];
        let who = prop_oneof![
            4 => Just(ADMIN),
            6 => Just(EXECUTOR),
            1 => Just(READER),
            1 => Just(STRANGER),
        ];
        Chances::any(what, who)
    }

    async fn new(_: &Stage<impl Redis>) -> Self {
        let mut bytes: Vec<Bytes> = (1..6_u8).map(|n| vec![n; usize::from(n)].into()).collect();
        bytes.push(vec![7; BLOB_CHUNK_BYTES + 1].into());
        Self {
            bytes,
            put: BTreeSet::new(),
            jobs: BTreeMap::new(),
            order: Vec::new(),
            made: BTreeMap::new(),
            revision: 1,
            past_requests: PastRequests::default(),
        }
    }

    async fn apply(&mut self, stage: &Stage<impl Redis>, op: Chances<What>) {
        match op.what {
            What::Put => return self.put(stage, op.who, op.object % self.bytes.len()).await,
            What::Sweep => return self.sweep(stage, op.other).await,
            What::Create | What::Delete | What::Again => {}
        }
        if let Some((who, call)) = self.call(&op) {
            self.request(stage, who, call).await;
        }
    }

    async fn check(&mut self, stage: &Stage<impl Redis>) {
        self.check_blobs(stage).await;
        self.check_jobs(stage).await;
        let bytes: usize = self.put.iter().map(|blob| self.bytes[*blob].len()).sum();
        assert_eq!(stage.counted("blob_bytes").await, bytes as u64);
        assert_eq!(stage.revision().await, self.revision, "one change, one revision");
    }

    fn kept(&self) -> Kept {
        let mut kept = Kept::on_stage(self.revision);
        self.past_requests.keep(CONTEXT, &mut kept);
        for (caller, id) in self.jobs.keys() {
            kept.key(CONTEXT, &ContextKey::Jobs);
            kept.key(CONTEXT, &ContextKey::Job(ActorId(*caller), JobId(*id)));
        }
        if !self.put.is_empty() {
            kept.global(&GlobalKey::BlobBytes);
        }
        for blob in &self.put {
            let hash = self.hash(*blob);
            kept.key(CONTEXT, &ContextKey::Blob(hash));
            for n in 0..self.bytes[*blob].len().div_ceil(BLOB_CHUNK_BYTES) {
                kept.key(CONTEXT, &ContextKey::BlobChunk(hash, u32::try_from(n).unwrap()));
            }
            let is_used = self.users(*blob) > 0;
            kept.key(CONTEXT, &if is_used { ContextKey::BlobRefs(hash) } else { ContextKey::BlobIdle });
        }
        kept
    }
}

#[test]
fn jobs_and_blobs_match_the_reference() {
    conformance::with_databases::<Jobs>(20);
}

#[test]
fn jobs_and_blobs_match_the_reference_with_hash_tags() {
    conformance::with_hash_tags::<Jobs>(20);
}

#[test]
fn jobs_and_blobs_match_the_reference_in_a_cluster() {
    conformance::in_a_cluster::<Jobs>(20);
}
