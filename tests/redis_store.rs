//! The store of a fleet as its users set it up and look at it.

use std::time::Duration;

use forbear::store::{OnOutage, Redis};
use forbear::{ConfigError, Limiter, Policy};

fn building(store: Redis) -> Result<Limiter, ConfigError> {
    Limiter::new(Policy::new("api").limit("5/s"), store)
}

#[test]
fn only_a_bad_address_fails_and_without_its_password() {
    assert!(Redis::new("redis://127.0.0.1:1").is_ok(), "nobody has to be there");
    let error = Redis::new("redis://user:secret@host:port").expect_err("no port").to_string();
    assert!(error.starts_with("store: url was not understood"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn it_is_built_away_from_redis_and_outside_of_any_runtime() {
    let store = Redis::new("redis://127.0.0.1:1").unwrap();
    assert!(building(store.clone()).is_ok());
    assert_eq!(store.health().to_string(), "not asked yet");
    assert!(!store.health().is_away());
    assert_eq!((store.health().lasted(), store.health().workers()), (None, None));
}

#[test]
fn the_first_fault_of_its_settings_is_returned_where_it_is_used() {
    let redis = || Redis::new("redis://127.0.0.1:1").unwrap();
    for (store, says) in [
        (redis().prefix(""), "store: prefix must be"),
        (redis().prefix("a{b}"), "store: prefix must be"),
        (redis().budget(Duration::ZERO), "store: budget must be above 0"),
        (redis().budget(Duration::from_secs(61)), "store: budget must be above 0"),
        (redis().on_outage(OnOutage::local_share(0)), "store: on_outage shares the limits among no worker"),
        (redis().budget(Duration::ZERO).prefix("").prefix("fine"), "store: budget"),
    ] {
        let error = building(store).map(|_| ()).expect_err(says).to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let store = redis().prefix("team-a:v1.2").budget(Duration::from_millis(50)).on_outage(OnOutage::Closed);
    assert!(building(store).is_ok());
}

#[test]
fn what_is_printed_of_it_holds_no_secret() {
    for (url, shows) in [
        ("redis://user:secret@10.0.0.1:7000/1", "10.0.0.1:7000"),
        ("unix:///run/redis.sock?user=user&pass=secret", "/run/redis.sock"),
        ("redis-cluster://user:secret@a,b:7000", "b:7000"),
        ("redis-sentinel://user:secret@a,b/main?sentinel_password=secret", "main of"),
    ] {
        let text = format!("{:?}", Redis::new(url).unwrap().prefix("team"));
        assert!(text.contains(shows) && text.contains("team"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
