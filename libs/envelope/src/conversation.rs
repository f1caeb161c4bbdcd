//! Two sides that speak to each other, and only to each other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use identity::VerifyingKey;
use model::Timestamp;
use mycelium::{Guard, Refused, RpcError};

use crate::certificate::Vouched;
use crate::{Envelope, Heard, Refusal, ReplayWindow, Sealer, statement};

/// How long anything said holds: longer than anybody waits for an answer, and than a bus takes.
const LIFETIME: Duration = Duration::from_secs(300);
/// Things that are remembered at once of one root: a daemon carries some thousands in that time.
const REMEMBERED_MAX: usize = 500_000;
/// Roots that are remembered at once.
const ROOTS_MAX: usize = 1024;

/// How much is remembered of what was heard, so that it is not heard again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Things of one root at once. What one says beyond it is refused until something is over.
    pub each: usize,
    /// Roots at once. Others are refused until nothing that one of them said holds any more.
    pub roots: usize,
}

impl Default for Memory {
    fn default() -> Self {
        Self { each: REMEMBERED_MAX, roots: ROOTS_MAX }
    }
}

/// What one process says and hears, with whomever.
#[derive(Debug)]
pub struct Voice {
    sealer: Sealer,
    memory: Memory,
    /// The keys by which others name it.
    names: RwLock<Vec<String>>,
    /// One for each root, so that nobody is in the way of others.
    windows: Mutex<HashMap<[u8; 32], ReplayWindow>>,
}

impl Voice {
    /// Speaks with this key, and is spoken to by these names: keys as hex digits.
    #[must_use]
    pub fn new(sealer: Sealer, names: Vec<String>) -> Arc<Self> {
        Self::remembering(sealer, names, Memory::default())
    }

    /// The same with a memory of another size: a small one where anybody may speak.
    #[must_use]
    pub fn remembering(sealer: Sealer, names: Vec<String>, memory: Memory) -> Arc<Self> {
        let names = RwLock::new(names);
        Arc::new(Self { sealer, memory, names, windows: Mutex::default() })
    }

    /// The key that it signs with.
    #[must_use]
    pub fn key(&self) -> VerifyingKey {
        self.sealer.key()
    }

    /// The key that stands for it: its root, or its own.
    #[must_use]
    pub fn root(&self) -> VerifyingKey {
        self.sealer.root()
    }

    /// Is spoken to by this name as well.
    pub fn add_name(&self, name: String) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(&name) {
            names.push(name);
        }
    }

    fn admit(&self, heard: &Heard, now: Timestamp) -> Result<(), Refusal> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let root = heard.root.as_bytes();
        let Memory { each, roots } = self.memory;
        if !windows.contains_key(root) && windows.len() >= roots {
            windows.retain(|_, window| !window.is_over(now));
            if windows.len() >= roots {
                return Err(Refusal::TooMuch);
            }
        }
        windows.entry(*root).or_insert_with(|| ReplayWindow::new(each)).admit(heard, now)
    }
}

/// Told of everything that is refused.
pub type OnRefusal = Arc<dyn Fn(&Refusal) + Send + Sync>;

/// A conversation with one other side: whoever speaks first in it, or who it was begun with, is who is listened to.
pub struct Conversation {
    voice: Arc<Voice>,
    them: Mutex<Them>,
    /// The certificate that they showed last: it comes with everything that they say.
    shown: Mutex<Option<Vouched>>,
    on_refusal: OnRefusal,
}

#[derive(Debug, Clone, Default)]
struct Them {
    /// By what name they are spoken to.
    name: Option<String>,
    /// The key that stands for them.
    root: Option<VerifyingKey>,
    /// When they were heard last.
    heard: Option<Timestamp>,
    /// Nobody else is listened to, whatever happens.
    fixed: bool,
}

impl Conversation {
    /// With whoever speaks first.
    #[must_use]
    pub fn new(voice: Arc<Voice>, on_refusal: OnRefusal) -> Self {
        Self { voice, them: Mutex::default(), shown: Mutex::default(), on_refusal }
    }

    /// Speaks to this name from the beginning: a key as hex digits.
    #[must_use]
    pub fn with_name(self, name: String) -> Self {
        self.them().name = Some(name);
        self
    }

    /// Listens to this root alone.
    #[must_use]
    pub fn with_root(self, root: VerifyingKey) -> Self {
        {
            let mut them = self.them();
            (them.root, them.fixed) = (Some(root), true);
        }
        self
    }

    /// The key that stands for the other side; none before it has said anything.
    #[must_use]
    pub fn root(&self) -> Option<VerifyingKey> {
        self.them().root
    }

    /// Says something.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] when it is no JSON, or nobody is known to whom it could be said.
    pub fn say(&self, body: &[u8], now: Timestamp) -> Result<Envelope, Refusal> {
        let name = self.them().name.clone();
        let name = name.ok_or_else(|| Refusal::Malformed("nobody has spoken here yet".to_owned()))?;
        self.voice.sealer.seal(&name, body, now, LIFETIME)
    }

    /// Hears something.
    ///
    /// # Errors
    /// Any [`Refusal`].
    pub fn hear(&self, envelope: &Envelope, now: Timestamp) -> Result<Bytes, Refusal> {
        let heard = {
            let names = self.voice.names.read().unwrap_or_else(PoisonError::into_inner);
            let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            statement::hear_knowing(envelope, &names, now, &mut shown)?
        };
        let mut them = self.them();
        // Nobody is held to a guess.
        let known = them.root.filter(|_| them.fixed || them.heard.is_some());
        if let Some(known) = known.filter(|known| *known != heard.root) {
            return Err(Refusal::OtherSigner {
                signer: heard.root.to_string(),
                known: known.to_string(),
                gone: !them.fixed && them.heard.is_some_and(|last| now.since(last) >= LIFETIME),
            });
        }
        self.voice.admit(&heard, now)?;
        let name = Some(heard.root.to_string());
        *them = Them { name, root: Some(heard.root), heard: Some(now), fixed: them.fixed };
        Ok(heard.body)
    }

    /// The same for whoever guards payloads: what is refused is counted, and answered where that is of use.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(&self, envelope: Result<Envelope, Refusal>, now: Timestamp) -> Result<Bytes, Refused> {
        let refused = |refusal: Refusal, body| {
            (self.on_refusal)(&refusal);
            // Where somebody else has taken the place of whoever spoke here, a new conversation begins.
            let over = matches!(refusal, Refusal::OtherSigner { gone: true, .. });
            // Keys, certificates and clocks are put in order by people; what was said is still wanted then.
            let error = RpcError::refused(refusal.code(), false, refusal.to_string());
            Refused { error, body, over }
        };
        let envelope = envelope.map_err(|refusal| refused(refusal, None))?;
        self.hear(&envelope, now).map_err(|refusal| {
            let body = refusal.is_told().then(|| statement::body(&envelope)).flatten();
            refused(refusal, body)
        })
    }

    fn them(&self) -> MutexGuard<'_, Them> {
        self.them.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Conversation").field(&*self.them()).finish()
    }
}

/// On a bus envelopes travel as JSON.
impl Guard for Conversation {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        let said = self.say(&payload, Timestamp::now());
        said.map(|envelope| envelope.to_json()).map_err(|refusal| refusal.to_string())
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, Refused> {
        Self::open(self, Envelope::from_json(payload), Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::SigningKey;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn voice() -> Arc<Voice> {
        let sealer = Sealer::of_root(SigningKey::generate());
        let names = vec![sealer.root().to_string()];
        Voice::new(sealer, names)
    }

    fn ignored() -> OnRefusal {
        Arc::new(|_| {})
    }

    #[test]
    fn who_speaks_first_is_listened_to_and_nobody_else() {
        let (one, other, stranger) = (voice(), voice(), voice());
        let name = other.root().to_string();
        let here = Conversation::new(Arc::clone(&one), ignored()).with_name(name.clone());
        let there = Conversation::new(Arc::clone(&other), ignored());
        assert!(there.say(b"{}", NOW).is_err(), "to nobody");
        let said = here.say(b"[1]", NOW).expect("JSON");
        assert_eq!(there.hear(&said, NOW).expect("the first"), b"[1]"[..]);
        assert_eq!(there.root(), Some(one.root()));
        assert_eq!(there.hear(&said, NOW), Err(Refusal::Replayed));
        let answer = there.say(b"[2]", NOW).expect("to the first");
        assert_eq!(here.hear(&answer, NOW).expect("an answer"), b"[2]"[..]);
        let strange = Conversation::new(stranger, ignored()).with_name(name);
        let said = strange.say(b"[3]", NOW).expect("JSON");
        assert_eq!(there.hear(&said, NOW).expect_err("somebody else").code(), "UNKNOWN_SIGNER");
        assert!(!there.open(Ok(said), NOW).expect_err("somebody else").over);
        let later = NOW + LIFETIME;
        let said = strange.say(b"[4]", later).expect("JSON");
        assert!(there.open(Ok(said), later).expect_err("somebody else").over, "nobody else speaks here now");
    }

    #[test]
    fn what_is_over_is_told_and_what_is_repeated_is_not() {
        let (one, other) = (voice(), voice());
        let here = Conversation::new(one, ignored()).with_name(other.root().to_string());
        let counted = Arc::new(Mutex::new(Vec::new()));
        let counting = Arc::clone(&counted);
        let on_refusal: OnRefusal =
            Arc::new(move |refusal: &Refusal| counting.lock().expect("free").push(refusal.code()));
        let there = Conversation::new(other, on_refusal);
        let said = here.say(b"[1]", NOW).expect("JSON");
        let late = there.open(Ok(said.clone()), NOW + LIFETIME).expect_err("too late");
        assert_eq!((late.error.reason(), late.body), ("ENVELOPE_EXPIRED", Some(Bytes::from_static(b"[1]"))));
        there.open(Ok(said.clone()), NOW).expect("in time");
        let again = there.open(Ok(said.clone()), NOW).expect_err("again");
        assert_eq!((again.error.reason(), again.body), ("REPLAYED", None));
        let forged = Envelope { payload: Bytes::from_static(b"{}"), ..said };
        let forged = there.open(Ok(forged), NOW).expect_err("forged");
        assert_eq!((forged.error.reason(), forged.body), ("BAD_SIGNATURE", None));
        assert_eq!(*counted.lock().expect("free"), ["ENVELOPE_EXPIRED", "REPLAYED", "BAD_SIGNATURE"]);
    }
}
