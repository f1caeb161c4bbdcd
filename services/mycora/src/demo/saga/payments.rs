//! A stand-in for a payment provider: an HTTPS server that reserves amounts and releases them.
//!
//! A reservation counts once for its `Idempotency-Key`, however often it is requested. An amount that is too large is declined, and
//! the answer to one reservation is lost on the way: the work is done, and the connection closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::orders::DemoOrder;
use super::{failed, listen};
use crate::failure::CliError;

/// The largest request, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Amount from which reservations are declined, in cents.
const DECLINED_FROM: u64 = 100_000;
const RESERVATIONS: &str = "/v1/reservations";

/// Counts of what was done for a reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PaymentCounts {
    /// Reservations that were made: more than one would be a mistake.
    pub(super) reserved: u32,
    /// Reservations that were declined.
    pub(super) declined: u32,
    /// Requests whose answer was lost.
    pub(super) lost: u32,
    /// Questions for a reservation, by its key, that were answered with it.
    pub(super) found: u32,
    /// Reservations that were released.
    pub(super) released: u32,
}

/// A reservation under its key.
struct PaymentReservation {
    reference: String,
    id: String,
}

#[derive(Default)]
struct PaymentLedger {
    by_key: BTreeMap<String, PaymentReservation>,
    payments: BTreeMap<String, PaymentCounts>,
}

/// The stand-in.
pub(super) struct FakePaymentServer {
    authorization: String,
    /// References whose first answer is lost.
    loses: Vec<String>,
    ledger: Mutex<PaymentLedger>,
    reserves: mpsc::UnboundedSender<String>,
    reserved: AsyncMutex<mpsc::UnboundedReceiver<String>>,
}

/// The answer that is lost on the way.
#[derive(Debug, thiserror::Error)]
#[error("the answer is lost")]
struct LostResponse;

impl FakePaymentServer {
    /// A stand-in that lets in who shows this token.
    pub(super) fn new(token: &str, orders: &[DemoOrder]) -> Self {
        let (reserves, reserved) = mpsc::unbounded_channel();
        let loses = orders.iter().filter(|order| order.is_answer_lost);
        Self {
            authorization: format!("Bearer {token}"),
            loses: loses.map(DemoOrder::reference).collect(),
            ledger: Mutex::default(),
            reserves,
            reserved: AsyncMutex::new(reserved),
        }
    }

    /// Returns the counts of what was done for a reference.
    pub(super) fn of(&self, reference: &str) -> PaymentCounts {
        self.ledger().payments.get(reference).cloned().unwrap_or_default()
    }

    /// Waits for the next reservation; gives its reference. Cancel safe.
    pub(super) async fn next_reservation(&self) -> String {
        match self.reserved.lock().await.recv().await {
            Some(reference) => reference,
            // Its other end is this one's.
            None => std::future::pending().await,
        }
    }

    fn ledger(&self) -> MutexGuard<'_, PaymentLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, LostResponse> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        if header(header::AUTHORIZATION.as_str()) != Some(&self.authorization) {
            return Ok(reply(StatusCode::UNAUTHORIZED, &Value::Null));
        }
        let key = header("idempotency-key").map(str::to_owned);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let query = request.uri().query().and_then(|query| query.strip_prefix("key=")).map(str::to_owned);
        let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await;
        let Ok(body) = body.map(http_body_util::Collected::to_bytes) else {
            return Ok(reply(StatusCode::BAD_REQUEST, &Value::Null));
        };
        match (method, path.as_str(), key, query) {
            (Method::POST, RESERVATIONS, Some(key), _) => self.reserve(&key, &body),
            (Method::GET, RESERVATIONS, _, Some(key)) => Ok(self.find(&key)),
            (Method::DELETE, path, ..) => Ok(self.release(path)),
            _ => Ok(reply(StatusCode::NOT_FOUND, &Value::Null)),
        }
    }

    fn reserve(&self, key: &str, body: &[u8]) -> Result<Response<Full<Bytes>>, LostResponse> {
        let reservation: Value = serde_json::from_slice(body).unwrap_or_default();
        let (Some(reference), Some(cents)) =
            (reservation["reference"].as_str(), reservation["amount_cents"].as_u64())
        else {
            return Ok(reply(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "code": "unreadable" })));
        };
        let mut ledger = self.ledger();
        if let Some(known) = ledger.by_key.get(key) {
            return Ok(reply(StatusCode::OK, &json!({ "id": known.id })));
        }
        let id = format!("pay-{}", ledger.by_key.len() + 1);
        let payment = ledger.payments.entry(reference.to_owned()).or_default();
        if cents >= DECLINED_FROM {
            payment.declined += 1;
            return Ok(reply(StatusCode::PAYMENT_REQUIRED, &json!({ "code": "declined" })));
        }
        payment.reserved += 1;
        let is_lost = payment.lost == 0 && self.loses.iter().any(|lost| lost == reference);
        payment.lost += u32::from(is_lost);
        ledger
            .by_key
            .insert(key.to_owned(), PaymentReservation { reference: reference.to_owned(), id: id.clone() });
        drop(ledger);
        // The receiver may be gone: it ends with the demonstration.
        let _ = self.reserves.send(reference.to_owned());
        if is_lost { Err(LostResponse) } else { Ok(reply(StatusCode::CREATED, &json!({ "id": id }))) }
    }

    fn find(&self, key: &str) -> Response<Full<Bytes>> {
        let mut ledger = self.ledger();
        let PaymentLedger { by_key, payments } = &mut *ledger;
        let Some(known) = by_key.get(key) else { return reply(StatusCode::NOT_FOUND, &Value::Null) };
        payments.entry(known.reference.clone()).or_default().found += 1;
        reply(StatusCode::OK, &json!({ "id": known.id }))
    }

    fn release(&self, path: &str) -> Response<Full<Bytes>> {
        let reference = path.strip_prefix(RESERVATIONS).and_then(|rest| rest.strip_prefix('/'));
        let mut ledger = self.ledger();
        let payment = reference.and_then(|reference| ledger.payments.get_mut(reference));
        match payment.filter(|payment| payment.reserved > payment.released) {
            Some(payment) => {
                payment.released += 1;
                reply(StatusCode::NO_CONTENT, &Value::Null)
            }
            None => reply(StatusCode::NOT_FOUND, &Value::Null),
        }
    }
}

/// Serves on a free port, which it gives.
///
/// # Errors
/// When there is none.
pub(super) async fn serve(
    payments: &Arc<FakePaymentServer>,
    tls: TlsAcceptor,
    serving: &mut JoinSet<()>,
) -> Result<u16, CliError> {
    let listener = listen().await?;
    let port = listener.local_addr().map_err(|error| failed("a port", &error))?.port();
    let payments = Arc::clone(payments);
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (payments, tls) = (Arc::clone(&payments), tls.clone());
            connections.spawn(async move {
                let Ok(stream) = tls.accept(stream).await else { return };
                let answers = service_fn(|request| payments.answer(request));
                // A broken connection is for the caller to handle.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answers).await;
            });
        }
    });
    Ok(port)
}

fn reply(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}
