//! `/`, `/metrics`, `/healthz`, `/readyz` and `/status.json` over HTTP/1.1.
//!
//! *Invariant*: nobody who asks here slows a client of the database, or others who ask: at most [`MOST`] are served at
//! a time, of which the oldest gives way to a new one, a request has [`PATIENCE`], and an answer is made of counts that
//! are there. Pages of others in a browser of this machine get nothing: a name that its owner lets mean 127.0.0.1 (DNS
//! rebinding) is not one of this machine, and is answered 421.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, X_CONTENT_TYPE_OPTIONS};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{Watch, Watcher};
use crate::ServeError;

const MOST: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// Nothing of the page comes from elsewhere, and nobody else may show it as theirs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'none'";

impl Watcher {
    /// Answers requests at an address of this machine's loopback until the runtime ends, and gives the address.
    ///
    /// # Errors
    /// The address is taken, or can be reached from other machines.
    pub async fn listen(&self, address: SocketAddr) -> Result<SocketAddr, ServeError> {
        if !address.ip().is_loopback() {
            return Err(ServeError::OpenPage(address));
        }
        let failed = |error| ServeError::Listen { address, error };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        tokio::spawn(serve(listener, self.0.clone()));
        Ok(address)
    }
}

async fn serve(listener: TcpListener, watch: Arc<Watch>) {
    // The oldest first. Who asks and reads is gone in no time, so the oldest does not.
    let mut asking: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let watch = watch.clone();
        asking.retain(|one| !one.is_finished());
        if asking.len() >= MOST
            && let Some(oldest) = asking.pop_front()
        {
            oldest.abort();
        }
        let one = tokio::spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&watch, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false).max_buf_size(16 << 10);
            // Whoever hangs up early wanted no answer.
            drop(tokio::time::timeout(2 * PATIENCE, http.serve_connection(TokioIo::new(socket), service)).await);
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

fn answer<B>(watch: &Watch, request: &Request<B>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, kind, text) = match request.uri().path() {
        _ if !is_for_here(request) => {
            let say = "this page is for this machine: ask for localhost or 127.0.0.1; a proxy has to set Host so\n";
            (StatusCode::MISDIRECTED_REQUEST, TEXT, say.into())
        }
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "this page only shows things: GET\n".into())
        }
        "/" => (StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html").into()),
        "/metrics" => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", watch.metrics()),
        "/status.json" => (StatusCode::OK, "application/json", watch.status().to_string()),
        "/healthz" => (StatusCode::OK, TEXT, "alive\n".into()),
        "/readyz" => match watch.readiness() {
            (true, text) => (StatusCode::OK, TEXT, text),
            (false, text) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, text),
        },
        _ => {
            let known = "there are /, /metrics, /status.json, /healthz and /readyz\n";
            (StatusCode::NOT_FOUND, TEXT, known.into())
        }
    };
    let response = Response::builder()
        .status(status)
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
