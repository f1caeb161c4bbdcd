//! Payloads of every size arrive, or are refused by name.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use mycelium::daemon::{FRAME_BYTES_MAX, MESSAGE_BYTES_MAX};
use mycelium::{Bus, BusError, BusInbox, Datagram, PayloadForm};

use crate::setup::{SCHEMES, bus, daemons, next, parcel};

const MIB: usize = 1024 * 1024;

fn payload(size: usize) -> Bytes {
    (0..size).map(|n| (n % 251) as u8).collect()
}

/// Everything that comes, until all of these sizes have.
async fn receive(inbox: &mut BusInbox, mut sizes: Vec<usize>) {
    while !sizes.is_empty() {
        let incoming = next(inbox).await;
        let place = sizes.iter().position(|size| *size == incoming.payload.len());
        sizes.remove(place.expect("each comes once"));
        assert!(incoming.payload == payload(incoming.payload.len()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_size_arrives() {
    for scheme in SCHEMES {
        let [a, b] = daemons();
        let (sender, receiver) = (bus(&a, scheme), bus(&b, scheme));
        let mut inbox = receiver.listen();
        let to = receiver.key().await;
        let sizes: Vec<usize> = (1290..=4000).collect();
        let sending = stream::iter(sizes.clone()).for_each_concurrent(sender.bus.window(), |size| {
            let sent = sender.send(to, payload(size));
            async move { sent.await.unwrap() }
        });
        tokio::join!(sending, receive(&mut inbox, sizes));
        assert!(sender.metrics.padded.get() > 500, "a fifth of all sizes never arrives");
        assert_eq!((receiver.metrics.received.get(), sender.metrics.in_flight.get()), (2711, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_go_in_parts() {
    for scheme in SCHEMES {
        let [a, b] = daemons();
        let (sender, receiver) = (bus(&a, scheme), bus(&b, scheme));
        let mut inbox = receiver.listen();
        let to = receiver.key().await;
        for size in [0, 64 * 1024, 640 * 1024, MIB - 1, MIB, MIB + 1, MESSAGE_BYTES_MAX] {
            let sending = async { sender.send(to, payload(size)).await.unwrap() };
            tokio::join!(sending, receive(&mut inbox, vec![size]));
        }
        let refused = sender.send(to, payload(MESSAGE_BYTES_MAX + 1)).await;
        let bytes = MESSAGE_BYTES_MAX + 1;
        assert_eq!(refused, Err(BusError::TooLarge { bytes, bytes_max: MESSAGE_BYTES_MAX }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_json_arrives_in_every_size_or_is_refused() {
    let [a, b] = daemons();
    let (sender, receiver) = (bus(&a, "ws"), bus(&b, "ws"));
    let mut inbox = receiver.listen();
    let to = receiver.key().await;
    let text = |size: usize| format!("[\"{}\"]", "x".repeat(size - 4));
    let plain = |size| Datagram { form: PayloadForm::Plain, ..parcel(to, text(size)) };
    let sizes = [10, 1300, 1301, 1302, 1400, 1549, 1550, 2601, 2849, 3901, 4149, 13_001, 130_249, MIB - 512];
    let sending = stream::iter(sizes).for_each_concurrent(None, |size| {
        let sent = sender.bus.send(plain(size));
        async move { sent.await.unwrap() }
    });
    let receiving = async {
        let mut missing = sizes.to_vec();
        while !missing.is_empty() {
            let incoming = next(&mut inbox).await;
            let payload = incoming.payload.trim_ascii_end();
            let place = missing.iter().position(|size| *size == payload.len()).expect("each comes once");
            assert!(payload == text(missing.remove(place)).as_bytes() && incoming.form == PayloadForm::Plain);
        }
    };
    tokio::join!(sending, receiving);
    let bytes = FRAME_BYTES_MAX + 1;
    let refused = sender.bus.send(plain(bytes)).await;
    assert_eq!(refused, Err(BusError::TooLarge { bytes, bytes_max: FRAME_BYTES_MAX }));
    let refused = sender.bus.send(Datagram { form: PayloadForm::Plain, ..parcel(to, "x") }).await;
    assert_eq!(refused, Err(BusError::NotPlain));
}
