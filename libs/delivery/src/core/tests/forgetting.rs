//! Attempts of flows that are gone.

use super::*;

#[test]
fn attempts_to_forget_are_passed_on_once_to_who_is_there() {
    let mut bench = Bench::new();
    bench.runner(1, true);
    bench.runner(2, false);
    let request = |runner_id| wire::AttemptsForget {
        context_id: 1,
        runner_id,
        job_keys: vec![key(1).to_string(), key(2).to_string()],
    };
    let forgets = vec![request(1), request(2), request(3)];
    let taken = || Input::Taken(wire::TakeResponse { forgets: forgets.clone(), ..Default::default() });
    let sent = bench.put(taken()).forget;
    let expected = wire::ForgetAttempts {
        address: ADDRESS.into(),
        topic: String::new(),
        context_id: 1,
        job_keys: request(1).job_keys,
    };
    assert_eq!(sent, [expected], "nobody is behind the others");
    bench.put(Input::GatewayDown);
    assert!(bench.put(taken()).forget.is_empty());
    assert!(bench.put(Input::GatewayUp).forget.is_empty(), "it is not repeated");
}
