//! An SMTP server that keeps every mail, and answers as a test wants it to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use testkit::{PATIENCE, wait_until};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A mail that was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sunk {
    pub(crate) from: String,
    pub(crate) to: Vec<String>,
    /// Headers and text, without the dots that were put before dots.
    pub(crate) content: String,
    pub(crate) is_encrypted: bool,
    /// Lines of AUTH, as they came.
    pub(crate) login: Vec<String>,
}

impl Sunk {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let (head, _) = self.content.split_once("\r\n\r\n")?;
        head.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn text(&self) -> &str {
        self.content.split_once("\r\n\r\n").expect("a head").1
    }
}

/// When a server encrypts.
#[derive(Clone)]
pub(crate) enum Tls {
    Never,
    Later(TlsAcceptor),
    AtOnce(TlsAcceptor),
}

/// Replies in place of the usual ones: by the first word of a command, `connection`, or `mail` for the end of one. Text without
/// an end of its line gets one; [`CUT`] closes the connection, [`HANG`] says nothing any more.
pub(crate) type Answers = BTreeMap<&'static str, String>;

/// Closes the connection.
pub(crate) const CUT: &str = "cut";
/// Says nothing any more.
pub(crate) const HANG: &str = "hang";

#[derive(Default)]
struct Seen {
    mails: Mutex<Vec<Sunk>>,
    accepted: Mutex<Vec<SocketAddr>>,
    hung: AtomicUsize,
}

pub(crate) struct SmtpSink {
    pub(crate) port: u16,
    seen: Arc<Seen>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

struct Session {
    stream: BufReader<Box<dyn Stream>>,
    answers: Arc<Answers>,
    seen: Arc<Seen>,
    mail: Sunk,
}

impl SmtpSink {
    pub(crate) async fn start(tls: Tls, answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let seen = Arc::new(Seen::default());
        let (keeps, answers) = (Arc::clone(&seen), Arc::new(answers));
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                keeps.accepted.lock().expect("it is whole").push(peer);
                tokio::spawn(serve(stream, tls.clone(), Arc::clone(&answers), Arc::clone(&keeps)));
            }
        });
        Self { port, seen }
    }

    pub(crate) fn mails(&self) -> Vec<Sunk> {
        self.seen.mails.lock().expect("it is whole").clone()
    }

    /// The only mail.
    pub(crate) fn only(&self) -> Sunk {
        let mails = self.mails();
        assert_eq!(mails.len(), 1, "{mails:?}");
        mails.into_iter().next().expect("one")
    }

    /// How many connections there were: all that were made before this one more.
    pub(crate) async fn connections(&self) -> usize {
        let probe = TcpStream::connect(("127.0.0.1", self.port)).await.expect("it listens");
        let probe = probe.local_addr().expect("its address");
        // Connections are accepted in their order.
        let before =
            async || self.seen.accepted.lock().expect("it is whole").iter().position(|peer| *peer == probe);
        wait_until(before, PATIENCE, "the probe is accepted").await
    }

    /// Waits until it says nothing any more.
    pub(crate) async fn hangs(&self) {
        let hung = async || (self.seen.hung.load(Ordering::SeqCst) > 0).then_some(());
        wait_until(hung, PATIENCE, "the server hangs").await;
    }
}

async fn serve(stream: TcpStream, tls: Tls, answers: Arc<Answers>, seen: Arc<Seen>) -> Option<()> {
    let stream: Box<dyn Stream> = match &tls {
        Tls::AtOnce(acceptor) => Box::new(acceptor.accept(stream).await.ok()?),
        Tls::Never | Tls::Later(_) => Box::new(stream),
    };
    let mail = Sunk { is_encrypted: matches!(tls, Tls::AtOnce(_)), ..Sunk::default() };
    let mut session = Session { stream: BufReader::new(stream), answers, seen, mail };
    session.reply("connection", "220 sink.test ESMTP").await?;
    loop {
        let line = session.line().await?;
        let word = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        match word.as_str() {
            "EHLO" => session.reply("EHLO", &offers(&tls, session.mail.is_encrypted)).await?,
            "STARTTLS" => {
                session.reply("STARTTLS", "220 go on").await?;
                let Tls::Later(acceptor) = &tls else { return None };
                let Session { stream, answers, seen, .. } = session;
                let stream: Box<dyn Stream> = Box::new(acceptor.accept(stream.into_inner()).await.ok()?);
                let mail = Sunk { is_encrypted: true, ..Sunk::default() };
                session = Session { stream: BufReader::new(stream), answers, seen, mail };
            }
            "AUTH" => session.log_in(&line).await?,
            "MAIL" => {
                session.mail.from = line.strip_prefix("MAIL FROM:")?.to_owned();
                session.reply("MAIL", "250 ok").await?;
            }
            "RCPT" => {
                session.mail.to.push(line.strip_prefix("RCPT TO:")?.to_owned());
                session.reply("RCPT", "250 ok").await?;
            }
            "DATA" => {
                session.reply("DATA", "354 go on").await?;
                session.content().await?;
            }
            _ => return session.reply("QUIT", "221 bye").await,
        }
    }
}

fn offers(tls: &Tls, is_encrypted: bool) -> String {
    let start = if matches!(tls, Tls::Later(_)) && !is_encrypted { "250-STARTTLS\r\n" } else { "" };
    format!("250-sink.test\r\n{start}250-AUTH PLAIN LOGIN\r\n250 8BITMIME")
}

impl Session {
    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.stream.read_line(&mut line).await.ok()?;
        (length > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Answers, with what the test wants or else with this.
    async fn reply(&mut self, to: &str, usual: &str) -> Option<()> {
        let answer = self.answers.get(to).cloned().unwrap_or_else(|| usual.to_owned());
        match answer.as_str() {
            CUT => return None,
            HANG => {
                self.seen.hung.fetch_add(1, Ordering::SeqCst);
                // Until the other side has gone.
                while self.line().await.is_some() {}
                return None;
            }
            _ => {}
        }
        let end = if answer.ends_with('\n') { "" } else { "\r\n" };
        self.stream.get_mut().write_all(format!("{answer}{end}").as_bytes()).await.ok()?;
        self.stream.get_mut().flush().await.ok()
    }

    async fn log_in(&mut self, line: &str) -> Option<()> {
        self.mail.login.push(line.to_owned());
        if line == "AUTH LOGIN" {
            for question in ["334 VXNlcm5hbWU6", "334 UGFzc3dvcmQ6"] {
                self.reply("334", question).await?;
                let answer = self.line().await?;
                self.mail.login.push(answer);
            }
        }
        self.reply("AUTH", "235 welcome").await
    }

    async fn content(&mut self) -> Option<()> {
        let mut content = String::new();
        loop {
            let begin = content.len();
            self.stream.read_line(&mut content).await.ok().filter(|length| *length > 0)?;
            let line = &content[begin..];
            if line == ".\r\n" {
                content.truncate(begin);
                break;
            }
            if line.starts_with('.') {
                content.remove(begin);
            }
        }
        self.mail.content = content;
        let is_taken = self
            .answers
            .get("mail")
            .is_none_or(|answer| answer.starts_with('2') || answer == CUT || answer == HANG);
        if is_taken {
            self.seen.mails.lock().expect("it is whole").push(self.mail.clone());
        }
        self.reply("mail", "250 taken").await
    }
}
