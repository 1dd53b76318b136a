//! Connections: which requests go where, and the bounds of a connection.

use super::access::{Access, guard};
use super::fields::unread;
use super::openai::{chat, completions};
use super::refusal::Refusal;
use super::shared::Shared;
use super::{facts, messages, ollama, responses, tokenize};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Most connections at a time. Others wait in the system's queue.
const MOST_CONNECTIONS: usize = 512;
/// Longest time for the headers of a request, and until the next request of a connection.
const HEADERS: Duration = Duration::from_secs(30);
/// Longest time in which a client reads nothing of what it is sent.
const READS_NOTHING: Duration = Duration::from_secs(120);
/// Most bytes and most lines of the headers.
const HEADER_BYTES: usize = 64 << 10;
const HEADER_LINES: usize = 100;
/// Pause after a connection could not be accepted, as when the process has no more files.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers go on after the server was told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// All endpoints.
pub fn router(shared: Arc<Shared>, access: Arc<Access>) -> Router {
    let allowed = Arc::clone(&access);
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(move |origin, _| allowed.allows_origin(origin)))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request());
    let mut router = Router::new()
        .route("/", get(ollama::root))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/version", get(ollama::version))
        .route("/props", get(facts::props))
        .route("/health", get(facts::health))
        .route("/metrics", get(facts::metrics))
        .route("/tokenize", post(tokenize::tokenize));
    // Some clients are given the address without /v1.
    for base in ["", "/v1"] {
        router = router
            .route(&format!("{base}/models"), get(facts::models))
            .route(&format!("{base}/models/{{*id}}"), get(facts::model_of))
            .route(&format!("{base}/chat/completions"), post(chat::complete))
            .route(&format!("{base}/completions"), post(completions::complete))
            .route(&format!("{base}/responses"), post(responses::create))
            .route(
                &format!("{base}/responses/{{id}}"),
                get(responses::retrieve).delete(responses::delete).post(not_found),
            )
            .route(&format!("{base}/responses/{{id}}/input_items"), get(responses::input_items))
            .route(&format!("{base}/dmschat/memory/{{id}}"), get(facts::memory))
            .route(&format!("{base}/messages"), post(messages::create))
            .route(&format!("{base}/messages/count_tokens"), post(messages::count_tokens));
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(axum::middleware::from_fn_with_state(access, guard))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&shared), in_form))
        .layer(cors)
        .with_state(shared)
}

/// Counts refusals, wherever they were made, and gives them the form of the API that was asked.
async fn in_form(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let refused: fn(Refusal) -> Response = match () {
        () if messages::owns(path) => messages::refused,
        () if ollama::owns(path) => ollama::refused,
        () => Refusal::into_response,
    };
    let mut response = next.run(request).await;
    let Some(refusal) = response.extensions_mut().remove::<Refusal>() else { return response };
    // What failed is counted as such.
    if refusal.status != StatusCode::INTERNAL_SERVER_ERROR {
        shared.metrics.refused.fetch_add(1, Relaxed);
    }
    refused(refusal)
}

async fn not_found(request: Request) -> Refusal {
    let message = format!("there is no {} on this server", request.uri().path());
    unread(request).await;
    Refusal::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

async fn not_allowed(request: Request) -> Refusal {
    let message = format!("{} is not answered to {}", request.uri().path(), request.method());
    unread(request).await;
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}

/// The answer to a request whose handling has panicked; others go on.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    Refusal::failed("the server failed at this request (a bug); others are not affected").into_response()
}

/// What ends the server.
pub trait Ends {
    /// Waits for the next one.
    fn next(&mut self) -> impl Future<Output = ()>;
}

/// Accepts connections until the first of `ends`, and then lets answers go on until they end,
/// [`DRAIN`] is over, or the second comes.
pub async fn serve(listener: TcpListener, router: Router, shared: &Shared, mut ends: impl Ends) {
    let graceful = GracefulShutdown::new();
    let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let next = async {
            let permit = Arc::clone(&free).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            next = next => next,
            () = ends.next() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                (shared.log)(&format!("a connection was not accepted: {error}"));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Chunks of a stream are small, and each is sent at once.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(READS_NOTHING));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(HEADER_BYTES)
            .max_headers(HEADER_LINES)
            .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router.clone()));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // An error is of the client: it has gone, or sent no HTTP.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    shared.close();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(DRAIN) => {}
        () = ends.next() => {}
    }
}
