//! `/`, `/metrics`, `/healthz`, `/readyz` and `/status.json` over HTTP/1.1.
//!
//! *Invariant*: a request to this page slows no client of the database and no other request: at most [`MOST`] are
//! served at a time, of which the oldest gives way to a new one, a request has [`TIMEOUT`], and an answer is made of
//! counts that are there. Pages of others in a browser of this machine get nothing: a name that its owner lets mean
//! 127.0.0.1 (DNS rebinding) is not one of this machine, and is answered 421.
//!
//! Beyond the loopback the page is given a token ([`Token`]), and answers nothing without it but `/healthz` and the
//! name of the state; with a certificate it talks TLS there. Browsers ask for a password, which is the token.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{Token, Watch, Watcher, families};
use crate::{ServeError, Tls};

const MOST: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Nothing of the page comes from elsewhere, and nobody else may show it as theirs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'none'";

/// Who may see what of the page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// What those who ask have to know. Without one only addresses of the loopback are listened at.
    pub token: Option<Token>,
    /// With a certificate, other machines ask by TLS.
    pub tls: Option<Tls>,
    /// Shows the values of hot keys.
    pub shows_keys: bool,
}

/// A page at its address.
struct Shown {
    watch: Arc<Watch>,
    page: Page,
    is_here: bool,
}

impl Watcher {
    /// Answers requests at an address until the runtime ends, and gives the address.
    ///
    /// # Errors
    /// The address is taken, or can be reached from other machines and the page has no token.
    pub async fn listen(&self, address: SocketAddr, page: Page) -> Result<SocketAddr, ServeError> {
        let is_here = address.ip().is_loopback();
        if !is_here && page.token.is_none() {
            return Err(ServeError::OpenPage(address));
        }
        let failed = |error| ServeError::Listen { address, error };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        tokio::spawn(serve(listener, Arc::new(Shown { watch: self.0.clone(), page, is_here })));
        Ok(address)
    }
}

async fn serve(listener: TcpListener, shown: Arc<Shown>) {
    // The oldest first. Who asks and reads is gone in no time, so the oldest does not.
    let mut asking: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let shown = shown.clone();
        asking.retain(|one| !one.is_finished());
        if asking.len() >= MOST
            && let Some(oldest) = asking.pop_front()
        {
            oldest.abort();
        }
        let one = tokio::spawn(async move {
            let tls = shown.page.tls.as_ref().filter(|_| !shown.is_here).map(|tls| tls.http.clone());
            let service = service_fn(move |request| {
                let answer = answer(&shown, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(TIMEOUT).keep_alive(false).max_buf_size(16 << 10);
            // Whoever hangs up early wanted no answer.
            let served = async {
                match tls {
                    Some(tls) => {
                        let Ok(socket) = tls.accept(socket).await else { return };
                        drop(http.serve_connection(TokioIo::new(socket), service).await);
                    }
                    None => drop(http.serve_connection(TokioIo::new(socket), service).await),
                }
            };
            drop(tokio::time::timeout(2 * TIMEOUT, served).await);
        });
        asking.push_back(one.abort_handle());
    }
}

/// Whether a request is for this machine, by what it says where it goes: `localhost` or an address of the loopback, as
/// the one that is listened at is. What says nothing comes from no browser.
fn is_for_here<B>(request: &Request<B>) -> bool {
    let hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    let target = request.uri().authority().map(hyper::http::uri::Authority::as_str);
    hosts.chain(target).all(is_here)
}

/// Whether HOST or HOST:PORT means this machine, whoever is asked what it means.
fn is_here(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a request has the page's token, or needs none.
fn may_see<B>(page: &Page, request: &Request<B>) -> bool {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    page.token.as_ref().is_none_or(|token| given.is_some_and(|given| token.is_in(given)))
}

fn answer<B>(shown: &Shown, request: &Request<B>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let Shown { watch, page, is_here } = shown;
    let may_see = may_see(page, request);
    let (status, kind, text) = match request.uri().path() {
        _ if *is_here && !is_for_here(request) => {
            let say = "this page is for this machine: ask for localhost or 127.0.0.1; a proxy has to set Host so\n";
            (StatusCode::MISDIRECTED_REQUEST, TEXT, say.into())
        }
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "this page only shows things: GET\n".into())
        }
        "/" | "/metrics" | "/status.json" if !may_see => {
            let say = "this page wants its token: Authorization: Bearer TOKEN, or the token as the password\n";
            (StatusCode::UNAUTHORIZED, TEXT, say.into())
        }
        "/" => (StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html").into()),
        "/metrics" => (StatusCode::OK, prometheus_text::CONTENT_TYPE, families::text(watch)),
        "/status.json" => (StatusCode::OK, "application/json", watch.status(page.shows_keys).to_string()),
        "/healthz" => (StatusCode::OK, TEXT, "alive\n".into()),
        "/readyz" => {
            let (is_ready, mut text) = watch.readiness();
            if !may_see {
                // The reason may name files and other machines.
                text = format!("{}\n", text.split([':', '\n']).next().unwrap_or_default());
            }
            (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, TEXT, text)
        }
        _ => {
            let known = "there are /, /metrics, /status.json, /healthz and /readyz\n";
            (StatusCode::NOT_FOUND, TEXT, known.into())
        }
    };
    let mut response = Response::builder().status(status);
    if status == StatusCode::UNAUTHORIZED {
        response = response.header(WWW_AUTHENTICATE, "Bearer realm=\"lockwork\"");
        response = response.header(WWW_AUTHENTICATE, "Basic realm=\"lockwork\", charset=\"UTF-8\"");
    }
    let response = response
        .header(CONTENT_TYPE, kind)
        .header(CACHE_CONTROL, "no-store")
        .header(X_CONTENT_TYPE_OPTIONS, "nosniff")
        .header(CONTENT_SECURITY_POLICY, POLICY)
        .body(Full::new(Bytes::from(text)));
    response.expect("all parts are constants")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_those_that_nobody_else_can_give() {
        for host in ["localhost", "LocalHost:9433", "127.0.0.1", "127.0.0.1:9433", "127.1.2.3:1", "[::1]", "[::1]:80"] {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "127.0.0.1.example.com:80",
            "localhost.example.com",
            "10.0.0.1:80",
            "[::2]",
            "a:b:1",
            "?",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }
}
