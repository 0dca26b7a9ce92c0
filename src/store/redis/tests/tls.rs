//! TLS, with certificates of our own.

use std::path::Path;
use std::process::Command;

use super::redis_process::{RedisProcess, free_port};
use super::{count, hub};
use crate::store::redis::hub::Away;

const URL: &str = "FORBEAR_TEST_TLS_URL";

fn openssl(directory: &Path, arguments: &str) {
    let arguments = arguments.split(' ').filter(|argument| !argument.is_empty());
    let done = Command::new("openssl").current_dir(directory).args(arguments).output();
    let done = done.expect("openssl is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// An authority, and a server's certificate by it.
fn certificates(directory: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(directory, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    openssl(directory, &format!("req {key} -keyout redis.key -out redis.csr -subj /CN=localhost"));
    std::fs::write(directory.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1").unwrap();
    openssl(
        directory,
        "x509 -req -in redis.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out redis.pem -days 2 -extfile names",
    );
}

/// The trusted certificates come from the environment, so the asking is done by a process of its own.
#[test]
fn a_server_with_tls() {
    let directory = std::env::temp_dir().join(format!("forbear-tls-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    certificates(&directory);
    let port = free_port().to_string();
    let file = |name: &str| directory.join(name).display().to_string();
    let (certificate, key, authority) = (file("redis.pem"), file("redis.key"), file("ca.pem"));
    let arguments = ["--tls-port", &port, "--tls-cert-file", &certificate, "--tls-key-file", &key];
    let more = ["--tls-ca-cert-file", &authority, "--tls-auth-clients", "no"];
    let redis = RedisProcess::with(&[&arguments[..], &more].concat());
    let ask = |trusted: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "store::redis::tests::tls::asks", "--nocapture"]);
        command.env(URL, format!("rediss://localhost:{port}")).env("SSL_CERT_FILE", trusted);
        let done = command.output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr)
    };
    let said = ask(&authority);
    assert!(said.contains("granted"), "{said}");
    assert_eq!(redis.cli(&["GET", "a"]), "1");
    openssl(
        &directory,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout other.key -out other.pem -days 2 -subj /CN=other",
    );
    let said = ask(&file("other.pem"));
    assert!(said.contains("certificate"), "{said}");
    assert_eq!(redis.cli(&["GET", "a"]), "1");
    _ = std::fs::remove_dir_all(&directory);
}

#[tokio::test]
async fn asks() {
    let Ok(url) = std::env::var(URL) else { return };
    let hub = hub(&url);
    match hub.run(&count("a")).await {
        Ok(_) => println!("granted"),
        Err(Away) => println!("{}", hub.health()),
    }
}
