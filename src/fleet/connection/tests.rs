//! A connection against an engine that is a socket in the test's hand.
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::fleet::{Gathering, Payload};

/// More than both sockets' buffers take.
const MUCH: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection, and its other end.
async fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    near.set_nodelay(true).unwrap();
    let (far, _) = listener.accept().await.unwrap();
    far.set_nodelay(true).unwrap();
    (Connection::new(Wire::Left(near), None), far)
}

fn request(method: Method, body: impl Into<Payload>) -> Request {
    let target = PathAndQuery::from_static("/v1/completions");
    Request::new(method, &target, &HeaderValue::from_static("engine")).body(body.into())
}

fn get() -> Request {
    request(Method::GET, Payload::default())
}

async fn within<T>(done: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, done).await.expect("in time")
}

/// Reads a request's head, byte for byte, and nothing behind it.
async fn asked(far: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within(far.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// What comes of a GET that is answered with `bytes`, after which the engine closes.
async fn answered(bytes: &[u8]) -> Result<Response<Received>, SendFailure> {
    let (connection, mut far) = pair().await;
    let engine = async {
        asked(&mut far).await;
        far.write_all(bytes).await.unwrap();
        far.shutdown().await.unwrap();
    };
    within(async { tokio::join!(connection.send(get()), engine).0 }).await
}

async fn frame(received: &mut Received) -> Option<Result<Bytes, String>> {
    let frame = within(received.frame()).await?;
    Some(frame.map(|frame| frame.into_data().unwrap()).map_err(|error| error.to_string()))
}

#[tokio::test]
async fn a_body_in_pieces_arrives_whole_and_the_connection_serves_again() {
    let (mut connection, mut far) = pair().await;
    let mut gathering = Gathering::default();
    for piece in 0..200_u32 {
        gathering.push(Bytes::from(vec![piece as u8; 20_000 + piece as usize]));
    }
    let payload = gathering.finish();
    for turn in 0..3 {
        let body = payload.clone();
        let engine = async {
            let head = asked(&mut far).await;
            assert!(head.contains(&format!("content-length: {}\r\n", payload.len())), "{head}");
            let mut read = vec![0; payload.len()];
            within(far.read_exact(&mut read)).await.unwrap();
            assert!(read == payload.clone().into_whole(), "turn {turn}");
            far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
        };
        let (response, ()) = tokio::join!(within(connection.send(request(Method::POST, body))), engine);
        let mut received = response.unwrap().into_body();
        assert_eq!(received.size_hint().exact(), Some(2));
        assert_eq!(frame(&mut received).await.unwrap().unwrap(), "{}");
        assert!(received.is_end_stream());
        connection = received.into_connection().expect("usable");
        assert!(connection.is_quiet().await);
    }
}

#[tokio::test]
async fn what_one_read_brings_is_one_frame() {
    let (connection, mut far) = pair().await;
    let engine = async {
        asked(&mut far).await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        far.write_all(format!("{head}1\r\na\r\n2\r\nbc\r\n3\r\ndef\r\n4\r\ng").as_bytes()).await.unwrap();
    };
    let (response, ()) = tokio::join!(within(connection.send(get())), engine);
    let mut received = response.unwrap().into_body();
    assert_eq!(frame(&mut received).await.unwrap().unwrap(), "abcdefg");
    assert!(!received.is_end_stream());
    far.write_all(b"hij\r\n").await.unwrap();
    assert_eq!(frame(&mut received).await.unwrap().unwrap(), "hij");
    far.write_all(b"1\r\nk\r\n0\r\nTrailer: dropped\r\n\r\n").await.unwrap();
    assert_eq!(frame(&mut received).await.unwrap().unwrap(), "k");
    assert!(received.is_end_stream(), "the end came with it");
    assert!(received.into_connection().is_some());
}

#[tokio::test]
async fn an_early_answer_is_handed_on_at_once_and_the_rest_of_the_request_is_sent() {
    for takes_all in [false, true] {
        let (connection, mut far) = pair().await;
        let sent = connection.send(request(Method::POST, Bytes::from(vec![b'x'; MUCH])));
        let engine = async {
            asked(&mut far).await;
            far.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\n\r\n{").await.unwrap();
        };
        let (response, ()) = tokio::join!(within(sent), engine);
        let response = response.unwrap();
        assert_eq!(response.status(), 413);
        let mut received = response.into_body();
        assert_eq!(frame(&mut received).await.unwrap().unwrap(), "{");
        let rest = async {
            if takes_all {
                let mut left = MUCH;
                let mut read = vec![0; 1 << 20];
                while left > 0 {
                    left -= within(far.read(&mut read)).await.unwrap();
                }
            }
            far.write_all(b"   }").await.unwrap();
        };
        // It is sent by whoever waits for the answer.
        let (rest, ()) = tokio::join!(frame(&mut received), rest);
        assert_eq!(rest.unwrap().unwrap(), "   }");
        assert!(received.is_end_stream());
        assert_eq!(received.into_connection().is_some(), takes_all);
    }
}

#[tokio::test]
async fn an_answer_before_the_socket_stops_taking_the_request_is_read() {
    let (connection, mut far) = pair().await;
    let engine = async {
        asked(&mut far).await;
        far.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
        // Bytes of the request are unread: the kernel resets the connection.
        drop(far);
    };
    let (sent, ()) =
        tokio::join!(within(connection.send(request(Method::POST, Bytes::from(vec![b'x'; MUCH])))), engine);
    match sent {
        Ok(response) => assert_eq!(response.status(), 400),
        // The reset may have overtaken the answer.
        Err(failure) => assert!(matches!(failure, SendFailure::Sent(Broken::Io(_))), "{failure:?}"),
    }
}

#[tokio::test]
async fn only_what_was_provably_not_sent_is_unsent() {
    // Closed before, and known to be.
    let (mut connection, far) = pair().await;
    drop(far);
    while connection.is_quiet().await {
        tokio::task::yield_now().await;
    }
    let failure = connection.send(get()).await.unwrap_err();
    assert!(matches!(failure, SendFailure::Unsent(_)), "{failure:?}");
    // It answered before it was asked.
    let (mut connection, mut far) = pair().await;
    assert!(connection.is_quiet().await);
    far.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
    let Wire::Left(wire) = &connection.wire else { panic!("plain") };
    wire.readable().await.unwrap();
    let failure = connection.send(get()).await.unwrap_err();
    assert!(matches!(failure, SendFailure::Unsent(Broken::Unasked)), "{failure:?}");
    let mut rest = Vec::new();
    within(far.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty(), "not a byte was sent");
    // The engine had it.
    let failure = answered(b"").await.unwrap_err();
    assert!(matches!(failure, SendFailure::Sent(Broken::NoAnswer)), "{failure:?}");
    let failure = answered(b"HTTP/1.1 200 OK\r\n").await.unwrap_err();
    assert!(matches!(failure, SendFailure::Sent(Broken::InHead)), "{failure:?}");
    let failure = answered(b"SSH-2.0-x\r\n").await.unwrap_err();
    assert!(matches!(failure, SendFailure::Sent(Broken::Head(_))), "{failure:?}");
    let failure = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n").await.unwrap_err();
    assert!(matches!(failure, SendFailure::Unfit(_)), "{failure:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_is_told_from_one_that_ends() {
    let body = async |answer: &str| {
        let mut received = answered(answer.as_bytes()).await.unwrap().into_body();
        let (mut data, mut wrong) = (Vec::new(), None);
        while let Some(frame) = frame(&mut received).await {
            match frame {
                Ok(bytes) => data.extend(bytes),
                Err(error) => wrong = Some(error),
            }
        }
        assert!(received.into_connection().is_none(), "{answer:?}");
        (String::from_utf8(data).unwrap(), wrong)
    };
    assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nall").await, ("all".into(), None));
    assert_eq!(body("HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nall").await, ("all".into(), None));
    for cut in ["Content-Length: 4\r\n\r\nall", "Transfer-Encoding: chunked\r\n\r\n3\r\nall\r\n"] {
        let (data, wrong) = body(&format!("HTTP/1.1 200 OK\r\n{cut}")).await;
        assert_eq!((&*data, &*wrong.unwrap()), ("all", "the connection was closed before the answer was whole"));
    }
    let (data, wrong) = body("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\nx\r\n").await;
    assert_eq!(data, "all", "what came before the fault is handed on");
    assert!(wrong.unwrap().contains("chunk size"));
    // Behind its end.
    assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall more").await, ("all".into(), None));
}

#[tokio::test]
async fn a_dropped_answer_closes_the_socket() {
    let (connection, mut far) = pair().await;
    let engine = async {
        asked(&mut far).await;
        far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{").await.unwrap();
    };
    let (response, ()) = tokio::join!(within(connection.send(get())), engine);
    drop(response.unwrap());
    assert!(matches!(within(far.read(&mut [0; 1])).await, Ok(0) | Err(_)));
}

#[tokio::test]
async fn a_large_answer_arrives_whole() {
    let body: Vec<u8> = (0..5_000_003_u32).map(|at| (at * 31 % 253) as u8).collect();
    for chunked in [false, true] {
        let (connection, mut far) = pair().await;
        let sent = async {
            asked(&mut far).await;
            if chunked {
                far.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
                for piece in body.chunks(70_001) {
                    far.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await.unwrap();
                    far.write_all(&[piece, b"\r\n"].concat()).await.unwrap();
                }
                far.write_all(b"0\r\n\r\n").await.unwrap();
            } else {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                far.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
            }
        };
        let read = async {
            let mut received = connection.send(get()).await.unwrap().into_body();
            let mut all = Vec::new();
            while let Some(data) = frame(&mut received).await {
                let data = data.unwrap();
                assert!(data.len() as u64 <= crate::http1::read::MOST, "no more is held than that");
                all.extend(data);
            }
            assert!(received.into_connection().is_some());
            all
        };
        let ((), all) = within(async { tokio::join!(sent, read) }).await;
        assert!(all == body, "chunked: {chunked}");
    }
}

#[tokio::test]
async fn a_whole_body_is_read_to_its_bound_and_no_further() {
    let body: Vec<u8> = (0..60_003_u32).map(|at| (at * 31 % 253) as u8).collect();
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let chunk = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len());
    for (head, end) in [(&*length, ""), (&chunk, "\r\n0\r\n\r\n"), ("HTTP/1.1 200 OK\r\n\r\n", "")] {
        let whole = async |answer: &[u8], most: usize| {
            let mut received = answered(answer).await.unwrap().into_body();
            let whole = within(received.whole(most)).await;
            (whole, received.into_connection().is_some())
        };
        let answer = [head.as_bytes(), &body, end.as_bytes()].concat();
        let (read, usable) = whole(&answer, body.len()).await;
        assert!(read.unwrap() == body, "{head}");
        assert_eq!(usable, head.contains('-'), "one that ends with its connection is of no more use");
        let (read, usable) = whole(&answer, body.len() - 1).await;
        assert!(matches!(read, Err(Broken::TooLong(60_002))), "{head}");
        assert!(!usable || head == chunk, "of one that is announced, nothing is read");
        let (cut, usable) = whole(&answer[..answer.len() - end.len() - 1], body.len()).await;
        assert_eq!(cut.is_err(), head.contains('-'), "{head}");
        assert!(!usable);
    }
    let (read, usable) = {
        let mut received = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nall more").await.unwrap().into_body();
        (received.whole(3).await, received.into_connection().is_some())
    };
    assert_eq!((read.unwrap(), usable), (Bytes::from("all"), false));
}
