//! Two sides that speak to each other, and only to each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use bytes::Bytes;
use identity::VerifyingKey;
use model::Timestamp;
use mycelium::{Guard, JsonRpcError, RejectedPayload};

use crate::statement::{SenderProof, ShownKeys};
use crate::{Envelope, OpenedEnvelope, Refusal, ReplayWindow, Sealer, statement};

/// How long an envelope holds: longer than any caller waits for an answer, and longer than a bus takes.
const LIFETIME: Duration = Duration::from_secs(300);
/// Envelopes that are remembered at once of one root: a daemon carries some thousands in that time.
const REMEMBERED_MAX: usize = 500_000;
/// Roots that are remembered at once.
const ROOTS_MAX: usize = 1024;

/// Limits on what is remembered of received envelopes, so that none is accepted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayWindowLimits {
    /// Envelopes of one root at once.
    pub messages_per_root: usize,
    /// Roots at once.
    pub roots_max: usize,
    /// Policy beyond these limits.
    pub overflow: OverflowPolicy,
}

/// Policy for when no more can be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// Refuses an envelope of a known root until one of that root's is over, and of a new root until all that is remembered
    /// of some other root is over.
    Refuse,
    /// Forgets what expires first: one envelope of a full root, or the root that was silent for longest. For places where strangers
    /// may send, each under many keys: none gets in the way of others, and repetitions are recognized by other means.
    EvictOldest,
}

impl Default for ReplayWindowLimits {
    fn default() -> Self {
        Self { messages_per_root: REMEMBERED_MAX, roots_max: ROOTS_MAX, overflow: OverflowPolicy::Refuse }
    }
}

/// Signer of one process, with the windows that recognize repeated envelopes, for all its conversations.
#[derive(Debug)]
pub struct EnvelopeSigner {
    sealer: RwLock<Sealer>,
    memory: ReplayWindowLimits,
    /// The keys by which others name it.
    names: RwLock<Vec<String>>,
    /// One window for each root, so that no root gets in the way of others.
    windows: Mutex<HashMap<[u8; 32], ReplayWindow>>,
}

impl EnvelopeSigner {
    /// Makes a signer with this key, addressed by these names: keys as hex digits.
    #[must_use]
    pub fn new(sealer: Sealer, names: Vec<String>) -> Arc<Self> {
        Self::with_replay_limits(sealer, names, ReplayWindowLimits::default())
    }

    /// Makes a signer with other limits: small ones where anybody may send.
    #[must_use]
    pub fn with_replay_limits(sealer: Sealer, names: Vec<String>, memory: ReplayWindowLimits) -> Arc<Self> {
        let names = RwLock::new(names);
        Arc::new(Self { sealer: RwLock::new(sealer), memory, names, windows: Mutex::default() })
    }

    /// The key that it signs with.
    #[must_use]
    pub fn key(&self) -> VerifyingKey {
        self.sealer().key()
    }

    /// The key that stands for it: its root, or its own.
    #[must_use]
    pub fn root(&self) -> VerifyingKey {
        self.sealer().root()
    }

    /// Signs with another key or another certificate from now on. When the root differs, the signer is addressed by the new root and
    /// not by the old one any more; ending conversations with peers that know the old root is up to the caller.
    pub fn renew(&self, sealer: Sealer) {
        let mut current = self.sealer.write().unwrap_or_else(PoisonError::into_inner);
        let (old, new) = (current.root(), sealer.root());
        *current = sealer;
        if old != new {
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            let old = old.to_string();
            names.retain(|name| *name != old);
            names.push(new.to_string());
        }
    }

    fn sealer(&self) -> RwLockReadGuard<'_, Sealer> {
        self.sealer.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts envelopes that are addressed to this name as well.
    pub fn add_name(&self, name: String) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(&name) {
            names.push(name);
        }
    }

    fn admit(&self, opened: &OpenedEnvelope, now: Timestamp) -> Result<(), Refusal> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let root = opened.root.as_bytes();
        let ReplayWindowLimits { messages_per_root: each, roots_max: roots, overflow: beyond } = self.memory;
        if !windows.contains_key(root) && windows.len() >= roots {
            windows.retain(|_, window| !window.is_expired(now));
            if windows.len() >= roots {
                if beyond == OverflowPolicy::Refuse {
                    return Err(Refusal::TooMuch);
                }
                let silent = windows.iter().min_by_key(|(_, window)| window.holds_until());
                let silent = silent.map(|(root, _)| *root);
                silent.and_then(|root| windows.remove(&root));
            }
        }
        let window = windows.entry(*root).or_insert_with(|| ReplayWindow::new(each));
        match window.admit(opened, now) {
            Err(Refusal::TooMuch) if beyond == OverflowPolicy::EvictOldest => {
                window.evict_oldest();
                window.admit(opened, now)
            }
            admitted => admitted,
        }
    }
}

/// Callback for every refusal.
pub type OnRefusal = Arc<dyn Fn(&Refusal) + Send + Sync>;

/// Check whether the signer of an envelope succeeds the root that the conversation is with.
pub type SuccessorCheck = Arc<dyn Fn(&VerifyingKey, &OpenedEnvelope) -> bool + Send + Sync>;

/// Conversation with one peer: the one that was given at the start, or else the first that sends a valid envelope.
pub struct Conversation {
    signer: Arc<EnvelopeSigner>,
    them: Mutex<ConversationPeer>,
    /// The keys that the peer showed last: they come with every envelope.
    shown: Mutex<ShownKeys>,
    on_refusal: OnRefusal,
    successor_check: Option<SuccessorCheck>,
    proof: SenderProof,
}

#[derive(Debug, Clone, Default)]
struct ConversationPeer {
    /// The name that envelopes to the peer are addressed to.
    name: Option<String>,
    /// The key that stands for the peer.
    root: Option<VerifyingKey>,
    /// When the peer's last envelope was accepted.
    last_received: Option<Timestamp>,
    /// True when no other root is accepted, whatever happens.
    fixed: bool,
}

impl Conversation {
    /// Makes a conversation with the first peer that sends a valid envelope.
    #[must_use]
    pub fn new(signer: Arc<EnvelopeSigner>, on_refusal: OnRefusal) -> Self {
        let (them, shown) = (Mutex::default(), Mutex::default());
        Self { signer, them, shown, on_refusal, successor_check: None, proof: SenderProof::Signature }
    }

    /// Sets it up for two parts of one program, over a channel that no other program can reach: envelopes are not signed, and none needs a
    /// signature. All other checks stay.
    #[must_use]
    pub fn in_process(self) -> Self {
        Self { proof: SenderProof::Transport, ..self }
    }

    /// Ends the conversation when a successor of its root sends an envelope; further envelopes begin a new conversation.
    #[must_use]
    pub fn with_successors(self, check: SuccessorCheck) -> Self {
        Self { successor_check: Some(check), ..self }
    }

    /// Addresses envelopes to this name from the beginning: a key as hex digits.
    #[must_use]
    pub fn with_name(self, name: String) -> Self {
        self.them().name = Some(name);
        self
    }

    /// Accepts envelopes of this root alone.
    #[must_use]
    pub fn with_root(self, root: VerifyingKey) -> Self {
        {
            let mut them = self.them();
            (them.root, them.fixed) = (Some(root), true);
        }
        self
    }

    /// The key that stands for the peer; none before its first envelope.
    #[must_use]
    pub fn root(&self) -> Option<VerifyingKey> {
        self.them().root
    }

    /// Wraps a body into an envelope for the peer.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] when the body is no JSON, or the peer is not known yet.
    pub fn sign(&self, body: &[u8], now: Timestamp) -> Result<Envelope, Refusal> {
        let name = self.them().name.clone();
        let name = name.ok_or_else(|| Refusal::Malformed("no envelope was received yet".to_owned()))?;
        self.signer.sealer().seal_by(self.proof, &name, body, now, LIFETIME)
    }

    /// Checks an envelope from the peer and returns its body.
    ///
    /// # Errors
    /// Any [`Refusal`].
    pub fn verify(&self, envelope: &Envelope, now: Timestamp) -> Result<Bytes, Refusal> {
        let opened = {
            let names = self.signer.names.read().unwrap_or_else(PoisonError::into_inner);
            let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            statement::open_with_cached(self.proof, envelope, &names, now, &mut shown)?
        };
        let mut them = self.them();
        // A root that has not sent anything yet is only a guess, unless it was given as fixed.
        let known = them.root.filter(|_| them.fixed || them.last_received.is_some());
        if let Some(known) = known.filter(|known| *known != opened.root) {
            return Err(Refusal::OtherSigner {
                signer: opened.root.to_string(),
                known: known.to_string(),
                gone: !them.fixed
                    && (them.last_received.is_some_and(|last| now.since(last) >= LIFETIME)
                        || self.successor_check.as_ref().is_some_and(|check| check(&known, &opened))),
            });
        }
        self.signer.admit(&opened, now)?;
        if them.last_received.replace(now).is_none() {
            (them.name, them.root) = (Some(opened.root.to_string()), Some(opened.root));
        }
        Ok(opened.body)
    }

    /// Opens an envelope where payloads are guarded: a refusal is counted, and answered where that is of use.
    ///
    /// # Errors
    /// [`RejectedPayload`].
    pub fn open(
        &self,
        envelope: Result<Envelope, Refusal>,
        now: Timestamp,
    ) -> Result<Bytes, RejectedPayload> {
        let refused = |refusal: Refusal, body| {
            (self.on_refusal)(&refusal);
            // When a successor has replaced the peer of this conversation, a new conversation begins.
            let over = matches!(refusal, Refusal::OtherSigner { gone: true, .. });
            // Not final: keys, certificates and clocks get fixed by people, and the request is still wanted then.
            let error = JsonRpcError::refused(refusal.code(), false, refusal.to_string());
            RejectedPayload { error, body, over }
        };
        let envelope = envelope.map_err(|refusal| refused(refusal, None))?;
        self.verify(&envelope, now).map_err(|refusal| {
            let body = refusal.is_reported().then(|| statement::body(&envelope)).flatten();
            refused(refusal, body)
        })
    }

    fn them(&self) -> MutexGuard<'_, ConversationPeer> {
        self.them.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Conversation").field(&*self.them()).finish()
    }
}

/// On a bus envelopes travel as JSON, within one program as they are.
impl Guard for Conversation {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        let envelope = self.sign(&payload, Timestamp::now()).map_err(|refusal| refusal.to_string())?;
        Ok(match self.proof {
            SenderProof::Signature => envelope.to_json(),
            SenderProof::Transport => envelope.to_bare(),
        })
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, RejectedPayload> {
        let envelope = match self.proof {
            SenderProof::Signature => Envelope::from_json(payload),
            SenderProof::Transport => Envelope::from_bare(statement::PAYLOAD_TYPE, payload),
        };
        Self::open(self, envelope, Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::SigningKey;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn signer() -> Arc<EnvelopeSigner> {
        let sealer = Sealer::of_root(SigningKey::generate());
        let names = vec![sealer.root().to_string()];
        EnvelopeSigner::new(sealer, names)
    }

    fn ignored() -> OnRefusal {
        Arc::new(|_| {})
    }

    #[test]
    fn the_first_sender_is_accepted_and_no_other() {
        let (one, other, stranger) = (signer(), signer(), signer());
        let name = other.root().to_string();
        let here = Conversation::new(Arc::clone(&one), ignored()).with_name(name.clone());
        let there = Conversation::new(Arc::clone(&other), ignored());
        assert!(there.sign(b"{}", NOW).is_err(), "to nobody");
        let envelope = here.sign(b"[1]", NOW).expect("JSON");
        assert_eq!(there.verify(&envelope, NOW).expect("the first"), b"[1]"[..]);
        assert_eq!(there.root(), Some(one.root()));
        assert_eq!(there.verify(&envelope, NOW), Err(Refusal::Replayed));
        let answer = there.sign(b"[2]", NOW).expect("to the first");
        assert_eq!(here.verify(&answer, NOW).expect("an answer"), b"[2]"[..]);
        let strange = Conversation::new(stranger, ignored()).with_name(name);
        let envelope = strange.sign(b"[3]", NOW).expect("JSON");
        assert_eq!(there.verify(&envelope, NOW).expect_err("somebody else").code(), "UNKNOWN_SIGNER");
        assert!(!there.open(Ok(envelope), NOW).expect_err("somebody else").over);
        let later = NOW + LIFETIME;
        let envelope = strange.sign(b"[4]", later).expect("JSON");
        assert!(
            there.open(Ok(envelope), later).expect_err("somebody else").over,
            "nobody else speaks here now"
        );
    }

    #[test]
    fn only_within_one_program_is_nothing_signed() {
        let (one, other) = (signer(), signer());
        let conversation = |signer: &Arc<EnvelopeSigner>| Conversation::new(Arc::clone(signer), ignored());
        let here = conversation(&one).with_name(other.root().to_string()).in_process();
        let envelope = here.sign(b"[1]", NOW).expect("JSON");
        assert!(envelope.signature.is_empty());
        assert_eq!(conversation(&other).verify(&envelope, NOW), Err(Refusal::BadSignature));
        let there = conversation(&other).in_process();
        assert_eq!(there.verify(&envelope, NOW).expect("said by a part of the same program"), b"[1]"[..]);
        assert_eq!(there.verify(&envelope, NOW), Err(Refusal::Replayed), "all else stays");
    }

    #[test]
    fn within_one_program_an_envelope_is_not_written_as_json() {
        let (one, other) = (signer(), signer());
        let conversation = |signer: &Arc<EnvelopeSigner>| Conversation::new(Arc::clone(signer), ignored());
        let here = conversation(&one).with_name(other.root().to_string()).in_process();
        let sealed = here.seal(Bytes::from_static(b"[1]")).expect("JSON");
        assert!(sealed.starts_with(one.root().to_string().as_bytes()), "{sealed:?}");
        assert!(Guard::open(&conversation(&other), &sealed).is_err(), "no bus carries this");
        let there = conversation(&other).in_process();
        assert_eq!(Guard::open(&there, &sealed).ok().as_deref(), Some(&b"[1]"[..]));
        for broken in [&sealed[..63], &sealed[..64], b"", &[0xff; 100]] {
            let broken = Bytes::copy_from_slice(broken);
            assert!(Guard::open(&conversation(&other).in_process(), &broken).is_err());
        }
    }

    #[test]
    fn strangers_do_not_get_in_the_way_of_others() {
        let memory = |beyond| ReplayWindowLimits { messages_per_root: 2, roots_max: 2, overflow: beyond };
        for (beyond, expected) in
            [(OverflowPolicy::Refuse, Err(Refusal::TooMuch)), (OverflowPolicy::EvictOldest, Ok(()))]
        {
            let sealer = Sealer::of_root(SigningKey::generate());
            let own = sealer.root().to_string();
            let here = EnvelopeSigner::with_replay_limits(sealer, vec![own.clone()], memory(beyond));
            let say = |by: &Arc<EnvelopeSigner>, now| {
                let conversation = Conversation::new(Arc::clone(by), ignored()).with_name(own.clone());
                conversation.sign(b"{}", now).expect("JSON")
            };
            let verify = |envelope: &Envelope| {
                let verified = Conversation::new(Arc::clone(&here), ignored()).verify(envelope, NOW);
                verified.map(drop)
            };
            let friend = signer();
            let first = say(&friend, NOW);
            assert_eq!((verify(&first), verify(&say(&friend, NOW))), (Ok(()), Ok(())));
            assert_eq!(verify(&first), Err(Refusal::Replayed), "as long as it is remembered");
            assert_eq!(verify(&say(&friend, NOW)), expected, "a third of the same");
            assert_eq!(verify(&say(&signer(), NOW + Duration::from_secs(1))), Ok(()));
            assert_eq!(verify(&say(&signer(), NOW)), expected, "a third root");
            assert!(here.windows.lock().expect("free").len() <= 2);
        }
    }

    #[test]
    fn a_successor_ends_a_conversation_at_once() {
        let (one, other, successor, stranger) = (signer(), signer(), signer(), signer());
        let name = other.root().to_string();
        let next = successor.root();
        let successors: SuccessorCheck =
            Arc::new(move |_, opened: &OpenedEnvelope| opened.root == next && *opened.body == *b"[2]");
        let there = Conversation::new(other, ignored()).with_successors(successors);
        let sign = |signer: &Arc<EnvelopeSigner>, body: &[u8]| {
            let here = Conversation::new(Arc::clone(signer), ignored()).with_name(name.clone());
            Ok(here.sign(body, NOW).expect("JSON"))
        };
        there.open(sign(&one, b"[1]"), NOW).expect("the first");
        assert!(!there.open(sign(&stranger, b"[2]"), NOW).expect_err("somebody else").over);
        assert!(!there.open(sign(&successor, b"[3]"), NOW).expect_err("nothing shows it").over);
        assert!(there.open(sign(&successor, b"[2]"), NOW).expect_err("in a new one").over);
    }

    #[test]
    fn a_signer_with_a_new_key_continues_and_one_with_a_new_root_is_unknown() {
        let (root, now) = (SigningKey::generate(), NOW);
        let certified = |root: &SigningKey| {
            let key = SigningKey::generate();
            let certificate = crate::GatewayCertificate::issue(
                root,
                key.verifying_key(),
                now,
                now + Duration::from_secs(60),
            );
            Sealer::certified(key, &certificate).expect("its own certificate")
        };
        let one = EnvelopeSigner::new(
            certified(&root),
            vec![root.verifying_key().to_string(), "a node".to_owned()],
        );
        let other = signer();
        let here = Conversation::new(Arc::clone(&one), ignored()).with_name(other.root().to_string());
        let there = Conversation::new(other, ignored());
        let say = || there.verify(&here.sign(b"[1]", now).expect("JSON"), now);
        say().expect("the first");
        one.renew(certified(&root));
        say().expect("with another key");
        let answer = there.sign(b"[2]", now).expect("JSON");
        assert_eq!(here.verify(&answer, now).expect("for the root"), b"[2]"[..]);
        let next = SigningKey::generate();
        one.renew(certified(&next));
        assert_eq!(one.root(), next.verifying_key());
        assert_eq!(say().expect_err("another root").code(), "UNKNOWN_SIGNER");
        let answer = there.sign(b"[3]", now).expect("JSON");
        assert_eq!(here.verify(&answer, now).expect_err("for the one before").code(), "WRONG_DESTINATION");
    }

    #[test]
    fn an_expired_envelope_is_refused_with_its_body_and_a_replayed_one_without() {
        let (one, other) = (signer(), signer());
        let here = Conversation::new(one, ignored()).with_name(other.root().to_string());
        let counted = Arc::new(Mutex::new(Vec::new()));
        let counting = Arc::clone(&counted);
        let on_refusal: OnRefusal =
            Arc::new(move |refusal: &Refusal| counting.lock().expect("free").push(refusal.code()));
        let there = Conversation::new(other, on_refusal);
        let envelope = here.sign(b"[1]", NOW).expect("JSON");
        let late = there.open(Ok(envelope.clone()), NOW + LIFETIME).expect_err("too late");
        assert_eq!((late.error.reason(), late.body), ("ENVELOPE_EXPIRED", Some(Bytes::from_static(b"[1]"))));
        there.open(Ok(envelope.clone()), NOW).expect("in time");
        let again = there.open(Ok(envelope.clone()), NOW).expect_err("again");
        assert_eq!((again.error.reason(), again.body), ("REPLAYED", None));
        let forged = Envelope { payload: Bytes::from_static(b"{}"), ..envelope };
        let forged = there.open(Ok(forged), NOW).expect_err("forged");
        assert_eq!((forged.error.reason(), forged.body), ("BAD_SIGNATURE", None));
        assert_eq!(*counted.lock().expect("free"), ["ENVELOPE_EXPIRED", "REPLAYED", "BAD_SIGNATURE"]);
    }
}
