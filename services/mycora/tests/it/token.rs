//! Tokens: made for others, and shown instead of a certificate.

use identity::token::TokenVerdict;
use identity::{ActorVerifyingKey, SigningKey, Token, TrustDomain};
use model::{ActorId, Timestamp};

use crate::commands::CommandFixture;
use crate::coordinator::{ACTOR_KEY, CoordinatorScript};
use crate::{home, mycora, stderr, stdout};

/// The token, and whether this key makes it count.
fn judged(text: &str, key: &SigningKey) -> (Token, bool) {
    let now = Timestamp::now();
    let token = Token::read(text, &TrustDomain::default(), now).expect("a token");
    let key =
        ActorVerifyingKey { key: key.verifying_key(), not_before: Timestamp::default(), revoked_at: None };
    let counts = matches!(token.verify(&[key], now), TokenVerdict::Good(_));
    (token, counts)
}

#[test]
fn a_token_stands_alone_and_counts() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let key = SigningKey::load(&place.home.path().join(ACTOR_KEY)).expect("a key");
    let printed = stdout(&place.run_command(&["token", "--signing-key", ACTOR_KEY], 0));
    let (token, counts) = judged(printed.trim_end(), &key);
    assert!(printed.ends_with('\n') && printed.lines().count() == 1, "{printed}");
    assert_eq!(token.actor(), ActorId(1), "as the profile says");
    assert!(counts);

    let flags = ["--signing-key", ACTOR_KEY, "--actor", "7", "--holds", "60s", "--header"];
    let printed = stdout(&place.run_command(&[&["token"], &flags[..]].concat(), 0));
    let text = printed.strip_prefix("authorization: Bearer ").expect("a header").trim_end();
    let (token, _) = judged(text, &key);
    let holds = token.expires_at().since(token.issued_at());
    assert_eq!((token.actor(), holds.as_secs()), (ActorId(7), 60));

    let document = place.document(&["token", "--token-key", ACTOR_KEY], 0);
    assert_eq!((&document["actor"], &document["audience"]), (&1.into(), &"spiffe://mycora".into()));
    for wrong in [&["--holds", "301s"][..], &["--actor", "0"], &["--signing-key", "none"], &[]] {
        place.run_command(&[&["token"], wrong].concat(), 2);
    }
    assert_eq!(place.calls().len(), 0, "nobody is asked");
}

#[test]
fn a_token_needs_no_profile() {
    let home = home();
    SigningKey::generate().write(&home.path().join("a.ed25519")).expect("written");
    let run = |arguments: &[&str]| mycora(home.path()).args(arguments).output().expect("it starts");
    let output = run(&["token", "--signing-key", "a.ed25519", "--actor", "2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = run(&["token", "--signing-key", "a.ed25519"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("the actor that owns the key a.ed25519 is not named"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn calls_show_tokens_where_there_is_a_key_and_no_certificate() {
    let place = CommandFixture::new(CoordinatorScript::Wait);
    let shown = stdout(&place.run_command(&["actor", "show", "--token-key", ACTOR_KEY], 0));
    assert!(shown.starts_with("identity  spiffe://mycora/actor/1\n"), "{shown}");
    // The coordinator takes a token once only for this.
    for _ in 0..2 {
        place.run_command(&["actor", "update", "1", "--here", "--token-key", ACTOR_KEY], 0);
    }
    let printed =
        stderr(&place.run_command(&["actor", "show", "--token-key", ACTOR_KEY, "--token-actor", "3"], 3));
    assert!(printed.contains("mycora doctor"), "{printed}");
    SigningKey::generate().write(&place.home.path().join("other.ed25519")).expect("written");
    place.run_command(&["actor", "show", "--token-key", "other.ed25519"], 3);
    let both = ["actor", "show", "--token-key", ACTOR_KEY, "--cert", "a.pem"];
    assert!(stderr(&place.run_command(&both, 2)).contains("cannot be used with"));

    let text = std::fs::read_to_string(&place.coordinator.profile).expect("a profile");
    let lines = text.lines().filter(|line| !line.starts_with("cert") && !line.starts_with("key"));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    std::fs::write(&place.coordinator.profile, format!("signing_key = \"{ACTOR_KEY}\"\n{text}"))
        .expect("written");
    let listed = stdout(&place.run_command(&["actor", "list"], 0));
    assert!(listed.starts_with("ID  KEY"), "{listed}");
}
