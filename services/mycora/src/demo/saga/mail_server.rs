//! A stand-in for a mail server: it takes mail over STARTTLS alone, and keeps it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::{failed, listen};
use crate::failure::CliError;

/// The longest line, and the longest mail, in bytes.
const LINE_BYTES_MAX: u64 = 4096;
const MAIL_BYTES_MAX: usize = 256 * 1024;

/// A mail that was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CapturedMail {
    /// For whom it is.
    pub(super) to: String,
    /// Headers and text.
    pub(super) content: String,
}

/// Mail server that keeps what it accepts in memory.
#[derive(Default)]
pub(super) struct FakeMailServer(Mutex<Vec<CapturedMail>>);

impl FakeMailServer {
    /// Mails for an address, in the order in which they came.
    pub(super) fn mails_to(&self, address: &str) -> Vec<CapturedMail> {
        let to = format!("<{address}>");
        self.mails().iter().filter(|mail| mail.to == to).cloned().collect()
    }

    fn mails(&self) -> MutexGuard<'_, Vec<CapturedMail>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves on a free port, which it gives.
///
/// # Errors
/// When there is none.
pub(super) async fn serve(
    post: &Arc<FakeMailServer>,
    tls: TlsAcceptor,
    serving: &mut JoinSet<()>,
) -> Result<u16, CliError> {
    let listener = listen().await?;
    let port = listener.local_addr().map_err(|error| failed("a port", &error))?.port();
    let post = Arc::clone(post);
    serving.spawn(async move {
        let mut sessions = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (post, tls) = (Arc::clone(&post), tls.clone());
            // A broken session is for the sender to handle.
            sessions.spawn(async move {
                let _ = greet(stream, &tls, &post).await;
            });
        }
    });
    Ok(port)
}

/// Speaks in the clear until the client starts TLS. No mail is accepted before.
async fn greet(stream: TcpStream, tls: &TlsAcceptor, post: &FakeMailServer) -> Option<()> {
    let mut dialog = FakeSmtpDialog(BufReader::new(stream));
    dialog.say("220 a stand-in for a mail server").await?;
    loop {
        match verb(&dialog.line().await?).as_str() {
            "EHLO" => dialog.say("250-localhost\r\n250 STARTTLS").await?,
            "STARTTLS" => break,
            "QUIT" => return dialog.say("221 bye").await,
            _ => dialog.say("530 STARTTLS first").await?,
        }
    }
    dialog.say("220 go on").await?;
    let stream = tls.accept(dialog.0.into_inner()).await.ok()?;
    take_mails(FakeSmtpDialog(BufReader::new(stream)), post).await
}

/// Takes mails over TLS.
async fn take_mails(
    mut dialog: FakeSmtpDialog<impl AsyncRead + AsyncWrite + Unpin>,
    post: &FakeMailServer,
) -> Option<()> {
    let mut mail = CapturedMail::default();
    loop {
        let line = dialog.line().await?;
        match verb(&line).as_str() {
            "EHLO" => dialog.say("250-localhost\r\n250 8BITMIME").await?,
            "MAIL" => {
                mail = CapturedMail::default();
                dialog.say("250 ok").await?;
            }
            "RCPT" => {
                mail.to = line.split_once(':')?.1.trim().to_owned();
                dialog.say("250 ok").await?;
            }
            "DATA" => {
                dialog.say("354 go on").await?;
                mail.content = dialog.content().await?;
                post.mails().push(std::mem::take(&mut mail));
                dialog.say("250 taken").await?;
            }
            "QUIT" => return dialog.say("221 bye").await,
            _ => dialog.say("502 what?").await?,
        }
    }
}

fn verb(line: &str) -> String {
    line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase()
}

/// One side of a dialog, line by line. It ends with nothing.
struct FakeSmtpDialog<S>(BufReader<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> FakeSmtpDialog<S> {
    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (&mut self.0).take(LINE_BYTES_MAX).read_line(&mut line).await.ok()?;
        line.ends_with('\n').then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    async fn say(&mut self, line: &str) -> Option<()> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).await.ok()?;
        self.0.get_mut().flush().await.ok()
    }

    /// Lines up to the dot that stands alone.
    async fn content(&mut self) -> Option<String> {
        let mut content = String::new();
        loop {
            let line = self.line().await?;
            if line == "." {
                return Some(content);
            }
            content.push_str(line.strip_prefix('.').unwrap_or(&line));
            content.push_str("\r\n");
            if content.len() > MAIL_BYTES_MAX {
                return None;
            }
        }
    }
}
