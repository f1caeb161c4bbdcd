//! Dialog with an SMTP server by RFC 5321, as far as sending one mail needs.
//!
//! The client of `lettre` 0.11 is not used: it panics at an EHLO line of blanks alone, reads lines without a bound, and takes what
//! arrived before the encryption for answers after it.

use std::fmt;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lettre::Address;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use zeroize::Zeroizing;

use super::mail::SmtpMail;
use crate::providers::SentFlag;
use crate::secrets::Secret;

/// A line of a reply, in bytes. RFC 5321 has 512.
const LINE_BYTES_MAX: u64 = 2048;
/// Lines of a reply.
const REPLY_LINES_MAX: usize = 128;
/// Characters of a server's text that are shown.
const SHOWN_CHARS_MAX: usize = 200;
/// Time limit for QUIT.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(1);

/// A connection, encrypted or not.
pub(super) trait SmtpStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> SmtpStream for S {}

/// Why a dialog did not go on.
#[derive(Debug)]
pub(super) enum SmtpError {
    /// The connection broke, or the server does not speak SMTP.
    Broken(String),
    /// The server refused a command.
    Refused {
        /// The refused command.
        what: &'static str,
        /// The code of its answer.
        code: u16,
        /// The text of its answer.
        text: String,
    },
    /// The server lacks a feature that is needed here. It may have it at another time.
    Missing(&'static str),
    /// The server lacks a feature that this mail needs.
    Unfit(&'static str),
}

impl fmt::Display for SmtpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(why) => f.write_str(why),
            Self::Refused { what, code, text } if text.is_empty() => {
                write!(f, "the server answered {what} with {code}")
            }
            Self::Refused { what, code, text } => {
                write!(f, "the server answered {what} with {code}: {text}")
            }
            Self::Missing(what) | Self::Unfit(what) => write!(f, "the server {what}"),
        }
    }
}

impl From<io::Error> for SmtpError {
    fn from(error: io::Error) -> Self {
        Self::Broken(format!("the connection broke: {error}"))
    }
}

/// Answer of a server to a command.
struct SmtpReply {
    code: u16,
    lines: Vec<String>,
}

impl SmtpReply {
    /// The text for people, without control characters that could affect a terminal.
    fn shown(&self) -> String {
        let text = self.lines.join(" ");
        text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS_MAX).collect()
    }
}

/// Extensions that a server offers.
#[derive(Debug, Clone, Copy, Default)]
struct SmtpExtensions {
    start_tls: bool,
    eight_bit: bool,
    utf8: bool,
    plain: bool,
    login: bool,
}

impl SmtpExtensions {
    /// Reads the lines of an answer to EHLO, of which the first one is a greeting.
    fn read(lines: &[String]) -> Self {
        let mut found = Self::default();
        for line in lines.iter().skip(1) {
            let line = line.to_ascii_uppercase();
            let mut words = line.split([' ', '=']).filter(|word| !word.is_empty());
            match words.next() {
                Some("STARTTLS") => found.start_tls = true,
                Some("8BITMIME") => found.eight_bit = true,
                Some("SMTPUTF8") => found.utf8 = true,
                Some("AUTH") => {
                    for mechanism in words {
                        found.plain |= mechanism == "PLAIN";
                        found.login |= mechanism == "LOGIN";
                    }
                }
                _ => {}
            }
        }
        found
    }
}

/// A dialog with a server.
pub(super) struct SmtpDialog {
    stream: BufReader<Box<dyn SmtpStream>>,
    extensions: SmtpExtensions,
}

impl SmtpDialog {
    /// A dialog over a connection.
    pub(super) fn new(stream: impl SmtpStream + 'static) -> Self {
        Self { stream: BufReader::new(Box::new(stream)), extensions: SmtpExtensions::default() }
    }

    /// Waits for the server to greet.
    pub(super) async fn greeting(&mut self) -> Result<(), SmtpError> {
        self.expect("the connection", 2).await.map(|_| ())
    }

    /// Sends EHLO, and reads the server's extensions.
    pub(super) async fn hello(&mut self, domain: &str) -> Result<(), SmtpError> {
        // A domain beyond ASCII would have to be encoded; an address literal means that the client has no name.
        let name = if domain.is_ascii() { domain } else { "[127.0.0.1]" };
        let reply = self.command("EHLO", &format!("EHLO {name}\r\n"), 2).await?;
        self.extensions = SmtpExtensions::read(&reply.lines);
        Ok(())
    }

    /// Ends the unencrypted part of the dialog, and returns the connection to be encrypted.
    pub(super) async fn start_tls(mut self) -> Result<impl SmtpStream + 'static, SmtpError> {
        if !self.extensions.start_tls {
            return Err(SmtpError::Missing("does not offer STARTTLS"));
        }
        self.command("STARTTLS", "STARTTLS\r\n", 2).await?;
        // An attacker in between may have injected these bytes, to be taken for later answers of the server.
        if !self.stream.buffer().is_empty() {
            return Err(SmtpError::Broken("the server went on unencrypted after STARTTLS".to_owned()));
        }
        Ok(self.stream.into_inner())
    }

    /// Logs in.
    pub(super) async fn log_in(&mut self, user: &str, password: &Secret) -> Result<(), SmtpError> {
        let answer = if self.extensions.plain {
            self.log_in_plain(user, password).await
        } else if self.extensions.login {
            self.log_in_step_by_step(user, password).await
        } else {
            return Err(SmtpError::Missing("offers neither AUTH PLAIN nor AUTH LOGIN"));
        };
        // The text of a refusal may repeat the credentials.
        answer.map_err(|trouble| match trouble {
            SmtpError::Refused { what, code, .. } => SmtpError::Refused { what, code, text: String::new() },
            other => other,
        })
    }

    async fn log_in_plain(&mut self, user: &str, password: &Secret) -> Result<(), SmtpError> {
        let both = Zeroizing::new(format!("\0{user}\0{}", password.expose()));
        let encoded = Zeroizing::new(BASE64.encode(both.as_bytes()));
        let line = Zeroizing::new(format!("AUTH PLAIN {}\r\n", *encoded));
        self.command("AUTH", &line, 2).await.map(|_| ())
    }

    async fn log_in_step_by_step(&mut self, user: &str, password: &Secret) -> Result<(), SmtpError> {
        let line = |text: &str| {
            let encoded = Zeroizing::new(BASE64.encode(text));
            Zeroizing::new(format!("{}\r\n", *encoded))
        };
        self.command("AUTH", "AUTH LOGIN\r\n", 3).await?;
        self.command("AUTH", &line(user), 3).await?;
        self.command("AUTH", &line(password.expose()), 2).await.map(|_| ())
    }

    /// Sends the sender, the recipients and DATA. The server must take all recipients, or it gets no mail.
    pub(super) async fn envelope(&mut self, mail: &SmtpMail) -> Result<(), SmtpError> {
        let is_ascii = |address: &Address| AsRef::<str>::as_ref(address).is_ascii();
        let mut parameters = String::new();
        if !mail.to.iter().chain([&mail.from]).all(is_ascii) {
            if !self.extensions.utf8 {
                return Err(SmtpError::Unfit("takes no addresses beyond ASCII"));
            }
            parameters.push_str(" SMTPUTF8");
        }
        if !mail.content.is_ascii() && self.extensions.eight_bit {
            parameters.push_str(" BODY=8BITMIME");
        }
        self.command("MAIL", &format!("MAIL FROM:<{}>{parameters}\r\n", mail.from), 2).await?;
        for address in &mail.to {
            self.command("RCPT", &format!("RCPT TO:<{address}>\r\n"), 2).await?;
        }
        self.command("DATA", "DATA\r\n", 3).await.map(|_| ())
    }

    /// Sends the content of a mail, but not its end: so far the server has taken nothing.
    pub(super) async fn content(&mut self, content: &[u8]) -> Result<(), SmtpError> {
        let mut stuffed = Vec::with_capacity(content.len() + content.len() / 64 + 2);
        for line in content.split_inclusive(|byte| *byte == b'\n') {
            if line.first() == Some(&b'.') {
                stuffed.push(b'.');
            }
            stuffed.extend_from_slice(line);
        }
        if !stuffed.ends_with(b"\r\n") {
            stuffed.extend_from_slice(b"\r\n");
        }
        self.write(&stuffed).await
    }

    /// Sends the end of the mail, and reads whether the server takes it.
    pub(super) async fn end_of_mail(&mut self, sent: &SentFlag) -> Result<(), SmtpError> {
        sent.raise();
        self.write(b".\r\n").await?;
        sent.has_left();
        match self.expect("the mail", 2).await {
            Ok(_) => Ok(()),
            Err(SmtpError::Refused { code, .. }) if !(400..600).contains(&code) => {
                Err(SmtpError::Broken(format!("it answered {code}, which is neither success nor failure")))
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Sends QUIT. The server's answer does not matter.
    pub(super) async fn leave(mut self) {
        let leaving = async {
            self.write(b"QUIT\r\n").await?;
            self.stream.get_mut().shutdown().await.map_err(SmtpError::from)
        };
        // Whether this arrives does not matter either.
        let _ = tokio::time::timeout(LEAVE_TIME_MAX, leaving).await;
    }

    /// Sends a command, and expects an answer whose code begins with this digit.
    async fn command(&mut self, what: &'static str, line: &str, class: u16) -> Result<SmtpReply, SmtpError> {
        self.write(line.as_bytes()).await?;
        self.expect(what, class).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), SmtpError> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes).await?;
        Ok(stream.flush().await?)
    }

    async fn expect(&mut self, what: &'static str, class: u16) -> Result<SmtpReply, SmtpError> {
        let reply = self.reply().await?;
        if reply.code / 100 == class {
            return Ok(reply);
        }
        Err(SmtpError::Refused { what, code: reply.code, text: reply.shown() })
    }

    /// Reads a reply: lines of one code, of which the last one has no hyphen behind it.
    async fn reply(&mut self) -> Result<SmtpReply, SmtpError> {
        let strange = || SmtpError::Broken("the server does not speak SMTP".to_owned());
        let mut reply: Option<SmtpReply> = None;
        loop {
            let mut line = Vec::new();
            (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
            if line.is_empty() {
                return Err(SmtpError::Broken("the server closed the connection".to_owned()));
            }
            let (code, is_last, text) = parse(&line).ok_or_else(strange)?;
            let reply = reply.get_or_insert_with(|| SmtpReply { code, lines: Vec::new() });
            if reply.code != code || reply.lines.len() == REPLY_LINES_MAX {
                return Err(strange());
            }
            reply.lines.push(text);
            if is_last {
                return Ok(SmtpReply { code, lines: std::mem::take(&mut reply.lines) });
            }
        }
    }
}

/// Reads a line of a reply: its code, whether it is the last one, and its text.
fn parse(line: &[u8]) -> Option<(u16, bool, String)> {
    let line = line.strip_suffix(b"\n")?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (code, rest) = line.split_at_checked(3)?;
    let is_code = matches!(code, [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9']);
    let code = is_code.then(|| code.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))?;
    let (is_last, text) = match rest.split_first() {
        None => (true, rest),
        Some((b' ', text)) => (true, text),
        Some((b'-', text)) => (false, text),
        Some(_) => return None,
    };
    Some((code, is_last, String::from_utf8_lossy(text).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_replies() {
        for (line, expected) in [
            ("250-ok\r\n", Some((250, false, "ok"))),
            ("250 ok\n", Some((250, true, "ok"))),
            ("354\r\n", Some((354, true, ""))),
            ("250-   \r\n", Some((250, false, "   "))),
            ("25 ok\r\n", None),
            ("999 ok\r\n", None),
            ("250_ok\r\n", None),
            ("250 cut off", None),
            ("\r\n", None),
            ("é50 ok\r\n", None),
        ] {
            let found = parse(line.as_bytes());
            let found = found.as_ref().map(|(code, is_last, text)| (*code, *is_last, text.as_str()));
            assert_eq!(found, expected, "{line:?}");
        }
    }

    #[test]
    fn what_a_server_can_do() {
        let lines = ["STARTTLS me", "   ", "starttls", "AUTH LOGIN", "AUTH=PLAIN", "8BITMIME"];
        let found = SmtpExtensions::read(&lines.map(str::to_owned));
        assert!(found.start_tls && found.login && found.plain && found.eight_bit && !found.utf8);
        let greeting = SmtpExtensions::read(&["STARTTLS".to_owned()]);
        assert!(!greeting.start_tls, "the first line is a name");
    }
}
