//! Pages of a server on this machine, and addresses that are refused.

use super::*;
use std::io::Write;
use std::net::{TcpListener, TcpStream};

/// Serves these answers, one a connection, and returns the port.
fn serve(answers: Vec<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (answer, stream) in answers.into_iter().zip(listener.incoming()) {
            let mut stream: TcpStream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(&answer);
        }
    });
    port
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status}\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    out.retain(|c| c != '\0');
    [out.into_bytes(), body.to_vec()].concat()
}

fn page(headers: &str, body: &[u8]) -> Result<Page, String> {
    let port = serve(vec![answer("200 OK", headers, body)]);
    fetch(&format!("http://127.0.0.1:{port}/a#b"), &AtomicBool::new(false))
}

#[test]
fn a_page_is_read_as_text_within_bounds() {
    let html = "Content-Type: text/html; charset=utf-8\r\n";
    let read = page(html, b"<title>T</title><p>caf&eacute;<script>x</script></p>").unwrap();
    assert_eq!((&*read.title, &*read.text, read.cut), ("T", "caf\u{e9}", false));
    assert!(read.url.ends_with("/a"), "{}", read.url);
    let read = page("Content-Type: text/plain; charset=ISO-8859-1\r\n", b"caf\xe9\x1b[31m\x80").unwrap();
    assert_eq!(read.text, "caf\u{e9}[31m\u{20ac}");
    let read = page(html, "a\u{e9}".repeat(MAX_TEXT / 3 + 9).as_bytes()).unwrap();
    assert!(read.cut && read.text.len() <= MAX_TEXT && read.text.len() > MAX_TEXT - 4);
    for (headers, body, why) in [
        ("Content-Type: image/png\r\n", &b"\x89PNG"[..], "it is image/png, not text"),
        ("", b"a\0b", "it is binary"),
        (html, b"<script>all()</script>", "no text"),
        ("Content-Type: text/html\r\nContent-Encoding: gzip\r\n", b"\x1f\x8b", "compresses it unasked"),
    ] {
        let error = page(headers, body).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    }
    let error = page(html, &vec![b'a'; MAX_BYTES + 1]).unwrap_err();
    assert!(error.contains("larger than 4 MiB"), "{error}");
    let port = serve(vec![answer("404 Not Found", "", b"")]);
    let error = fetch(&format!("http://127.0.0.1:{port}/"), &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error, "the server answers 404");
}

#[test]
fn private_addresses_are_refused_at_every_hop_unless_typed() {
    let stop = AtomicBool::new(false);
    let ok = || answer("200 OK", "Content-Type: text/plain\r\n", b"secret");
    let port = serve(vec![ok(), ok(), ok(), ok()]);
    // Names and other spellings of an address are not typed as a number.
    for host in ["localhost", "127.1", "2130706433", "0x7f000001"] {
        let error = fetch(&format!("http://{host}:{port}/"), &stop).unwrap_err();
        assert!(error.contains("not a public address") || error.contains("not found"), "{host}: {error}");
    }
    let error = fetch(&format!("http://localhost:{port}/"), &stop).unwrap_err();
    assert!(error.contains("localhost is 127.0.0.1") || error.contains("localhost is ::1"), "{error}");
    assert_eq!(fetch(&format!("http://127.0.0.1:{port}/"), &stop).unwrap().text, "secret");
    // Another private address, a name of one, another scheme.
    for (to, why) in [
        (format!("http://127.0.0.2:{port}/"), "127.0.0.2 is not a public address"),
        (format!("http://localhost:{port}/"), "not a public address"),
        ("http://10.0.0.1/".to_owned(), "10.0.0.1 is not a public address"),
        ("http://[::ffff:10.0.0.1]/".to_owned(), "is not a public address"),
        ("file:///etc/passwd".to_owned(), "neither http nor https"),
        ("ftp://a/b".to_owned(), "neither http nor https"),
        ("http://user@127.0.0.1/".to_owned(), "names a user"),
    ] {
        let from = serve(vec![answer("302 Found", &format!("Location: {to}\r\n"), b"")]);
        let error = fetch(&format!("http://127.0.0.1:{from}/"), &stop).unwrap_err();
        assert!(error.contains(why), "{to}: {error}");
    }
    // The typed address itself, and paths.
    let from = serve(vec![answer("301 Moved", "Location: /b?c\r\n", b""), ok()]);
    assert!(fetch(&format!("http://127.0.0.1:{from}/a/"), &stop).unwrap().url.ends_with("/b?c"));
    let from = serve((0..20).map(|_| answer("302 Found", "Location: /again\r\n", b"")).collect());
    let error = fetch(&format!("http://127.0.0.1:{from}/"), &stop).unwrap_err();
    assert_eq!(error, "it redirects without end");
}

#[test]
fn redirects_and_urls_are_read_as_browsers_do() {
    let from: Uri = "https://a.b:8/c/d?e".parse().unwrap();
    for (to, expected) in [
        ("https://x/y", Some("https://x/y")),
        ("//x/y", Some("https://x/y")),
        ("/y?u=http://z", Some("https://a.b:8/y?u=http://z")),
        ("y", Some("https://a.b:8/c/y")),
        ("?y", Some("https://a.b:8/c/d?y")),
        ("javascript:x", Some("javascript:x")),
        ("", None),
    ] {
        assert_eq!(target(&from, to).as_deref(), expected, "{to}");
    }
    assert_eq!(parsed("http://a/\u{e9} b#c").unwrap().to_string(), "http://a/%C3%A9%20b");
    assert_eq!(parsed("HTTPS://A/b").unwrap().scheme_str(), Some("https"));
    for url in ["", "a", "http://", "http:///x", "ftp://a", "http://u:p@a/", &format!("http://a/{}", "x".repeat(9000))]
    {
        assert!(parsed(url).is_err(), "{url}");
    }
    assert!(is_url("HTTPS://a") && is_url("http://a") && !is_url("http://") && !is_url("https") && !is_url("ftp://a"));
}
