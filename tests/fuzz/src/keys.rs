//! Keys that are the same each time, so that the meaning of an input never changes. They belong to no real actor.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use identity::SigningKey;

/// How many there are.
pub(crate) const COUNT: usize = 5;

/// PKCS#8 prefix before the seed of an Ed25519 key.
const PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

static KEYS: LazyLock<[SigningKey; COUNT]> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory for files");
    std::array::from_fn(|i| {
        let seed = [i as u8 + 1; 32];
        let label = "PRIVATE KEY";
        let body = STANDARD.encode([&PREFIX[..], &seed].concat());
        let path = dir.path().join(i.to_string());
        std::fs::write(&path, format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"))
            .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o600)))
            .expect("a file is written");
        SigningKey::load(&path).expect("a key in its own form")
    })
});

/// One of them.
pub(crate) fn key(number: usize) -> &'static SigningKey {
    &KEYS[number % COUNT]
}
