//! Seeds, and what random bytes make of them.

/// Pieces that are put into a text.
const PIECES: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1.0",
    "1e999",
    "12345678901234567890",
    "\"\"",
    "{}",
    "[]",
    "\\u0000",
    "\\ud800",
    "é",
    "\u{1f600}",
    "\n",
    "\r\n",
    "%",
    "%2F",
    "/",
    "//",
    "..",
    ":cancel",
    "\"kind\":\"task\",",
    "\"data\":",
    "\"value\":",
    "\"metadata\":{\"data_part_compat\":true},",
    "\"supportedInterfaces\":",
    "tasks/",
    "data: ",
    "id: ",
    "v1/",
];

/// A text with some changes, as the bytes say: the first one chooses the text, each further three make one change.
pub fn mutated(seeds: &[&str], bytes: &[u8]) -> Vec<u8> {
    let Some((first, rest)) = bytes.split_first() else { return Vec::new() };
    // Now and then the bytes are the input themselves.
    if *first == 255 {
        return rest.to_vec();
    }
    let mut text = seeds[usize::from(*first) % seeds.len()].as_bytes().to_vec();
    for change in rest.chunks_exact(3).take(12) {
        let [what, at, with] = *change else { continue };
        if text.is_empty() {
            break;
        }
        let at = usize::from(at) * text.len() / 256;
        let (piece, length) = (PIECES[usize::from(with) % PIECES.len()], usize::from(with) % 24);
        let end = (at + length).min(text.len());
        match what % 6 {
            0 => drop(text.splice(at..at, piece.bytes())),
            1 => drop(text.splice(at..end, piece.bytes())),
            2 => drop(text.drain(at..end)),
            3 => text[at] = with,
            4 => text.extend_from_within(at..end),
            // A value for another one: from a quote to the next.
            _ => {
                let quote = |from: usize| text[from..].iter().position(|b| *b == b'"').map(|i| from + i);
                if let Some((from, to)) = quote(at).and_then(|from| Some((from, quote(from + 1)?))) {
                    drop(text.splice(from..=to, piece.bytes()));
                }
            }
        }
    }
    text
}

/// Bodies of JSON-RPC requests, in 1.0 and 0.3.
pub const JSONRPC: [&str; 9] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"tenant":"t","message":{"messageId":"m","role":"ROLE_USER","contextId":"c","taskId":"t","parts":[{"text":"hi","mediaType":"text/plain"},{"data":null},{"raw":"AAEC"}],"metadata":{}},"configuration":{"historyLength":2,"returnImmediately":true,"acceptedOutputModes":["a/b"],"taskPushNotificationConfig":{"url":"https://e.example","token":"k","authentication":{"scheme":"Bearer","credentials":"s"}}},"metadata":{"k":1}}}"#,
    r#"{"jsonrpc":"2.0","id":"a","method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"},{"kind":"file","file":{"bytes":"AAEC","name":"n","mimeType":"a/b"}},{"kind":"data","data":{"value":[1]},"metadata":{"data_part_compat":true}}]},"configuration":{"blocking":false,"historyLength":0,"pushNotificationConfig":{"url":"https://e.example","authentication":{"schemes":["Bearer"]}}}}}"#,
    r#"{"jsonrpc":"2.0","id":null,"method":"ListTasks","params":{"contextId":"c","status":"TASK_STATE_WORKING","pageSize":10,"pageToken":"AQAAAAAAAAAAdA","statusTimestampAfter":"2026-11-29T10:00:00Z","includeArtifacts":true}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"CreateTaskPushNotificationConfig","params":{"taskId":"t","id":"p","url":"https://[::1]:80/x","token":"k","authentication":{"scheme":"Bearer","credentials":"s"}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tasks/pushNotificationConfig/set","params":{"taskId":"t","pushNotificationConfig":{"id":"p","url":"https://e.example","authentication":{"schemes":["a","b"],"credentials":"s"}}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t","historyLength":0,"metadata":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tasks/pushNotificationConfig/get","params":{"id":"t","pushNotificationConfigId":"p"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"CancelTask","params":{"id":"t","metadata":{"k":7}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}"#,
];

/// Method, path, query and body, each on a line.
pub const HTTP_JSON: [&str; 8] = [
    "POST\n/acme/message:send\n\n{\"message\":{\"messageId\":\"m\",\"role\":\"ROLE_USER\",\"parts\":[{\"text\":\"hi\"}]},\"tenant\":\"acme\"}",
    "GET\n/tasks/t%2F1/\nhistoryLength=2&A2A-Version=1.0\n",
    "GET\n/tasks\ncontextId=a%26b+c&status=TASK_STATE_WORKING&pageSize=10&includeArtifacts=true&tenant=x\n",
    "POST\n/tasks/t1:cancel\n\n{\"id\":\"t1\",\"metadata\":{\"k\":7}}",
    "GET\n/tasks/t1:subscribe\n\n",
    "DELETE\n/tasks/t1/pushNotificationConfigs/p1\n\n",
    "POST\n/v1/tasks/t1/pushNotificationConfigs\n\n{\"parent\":\"tasks/t1\",\"config_id\":\"p\",\"config\":{\"push_notification_config\":{\"url\":\"https://e.example\"}}}",
    "POST\n/v1/message:stream\n\n{\"request\":{\"message_id\":\"m\",\"role\":1,\"content\":[{\"text\":\"a\"},{\"file\":{\"file_with_bytes\":\"QUFFQw==\"}},{\"data\":{\"data\":{\"k\":1}}}]},\"configuration\":{\"blocking\":true}}",
];

/// Values of the version header.
pub const VERSIONS: [&str; 6] = ["1.0", "0.3", "1.0.1", " 0.3.0 ", "2", "99999999999.0"];

/// Bodies of server-sent events.
pub const STREAMS: [&str; 4] = [
    ": hb\n\nretry: 2000\nid: t.1\nevent: error\ndata: {\"a\":1}\ndata: b\n\n",
    "\u{feff}data:a\r\ndata\r\n\r\nid: 7\r\r",
    "data: 1\n\ndata: 2\n\nid: a\0b\nevent:\ndata: 3",
    "id\nretry: x\ndata: \u{1f600}\n\n",
];

/// Agent Cards of 1.0, of 0.3 and of both.
pub const CARDS: [&str; 4] = [
    r#"{"url":"http://seller.shop.svc:8080/a/","preferredTransport":"GRPC","additionalInterfaces":[{"url":"h:1","transport":"GRPC"},{"url":"HTTPS://u@seller.shop.svc.cluster.local/b?x#y","transport":"JSONRPC"}],"supportedInterfaces":[{"url":"https://gw.example/seller/","protocolBinding":"HTTP+JSON","protocolVersion":"1.0"}],"signatures":[{}]}"#,
    r#"{"name":"A","description":"d","version":"1","supportedInterfaces":[{"url":"https://a.example","protocolBinding":"JSONRPC","protocolVersion":"1.0"},{"url":"a.example:443","protocolBinding":"GRPC","protocolVersion":"0.3"}],"capabilities":{"streaming":true,"extendedAgentCard":true,"extensions":[{"uri":"urn:x","required":true,"params":{"n":7}}]},"securitySchemes":{"k":{"apiKeySecurityScheme":{"location":"header","name":"X"}},"o":{"oauth2SecurityScheme":{"flows":{"authorizationCode":{"authorizationUrl":"a","tokenUrl":"t","scopes":{"r":"read"},"pkceRequired":true}}}}},"securityRequirements":[{"schemes":{"o":{"list":["r"]}}}],"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[{"id":"s","name":"S","description":"d","tags":["t"],"securityRequirements":[{"schemes":{"o":{"list":["r"]}}}]}],"signatures":[{"protected":"p","signature":"s"}]}"#,
    r#"{"protocolVersion":"0.3.0","name":"A","description":"d","version":"1","url":"https://a.example","preferredTransport":"JSONRPC","additionalInterfaces":[{"url":"https://a.example","transport":"JSONRPC"},{"url":"a.example:443","transport":"GRPC"}],"capabilities":{"streaming":true,"stateTransitionHistory":true},"supportsAuthenticatedExtendedCard":true,"securitySchemes":{"k":{"type":"apiKey","in":"header","name":"X"},"o":{"type":"oauth2","flows":{"implicit":{"authorizationUrl":"a","scopes":{}},"clientCredentials":{"tokenUrl":"t","scopes":{"r":"read"}}}}},"security":[{"k":[]},{"o":["r"]}],"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"skills":[{"id":"s","name":"S","description":"d","tags":[],"security":[{"k":[]}]}]}"#,
    r#"{"name":"A","url":"https://a.example","supportedInterfaces":[{"url":"https://a.example","protocolBinding":"JSONRPC","protocolVersion":"0.3"}],"securitySchemes":{"k":{"type":"apiKey","in":"header","name":"X","apiKeySecurityScheme":{"location":"header","name":"X"}}}}"#,
];

/// Results, events and parameters, in both versions.
pub const OBJECTS: [&str; 12] = [
    r#"{"task":{"id":"t1","contextId":"c1","status":{"state":"TASK_STATE_INPUT_REQUIRED","timestamp":"2026-11-29T10:00:00.123Z","message":{"messageId":"m2","role":"ROLE_AGENT","parts":[{"text":"which?"}]}},"artifacts":[{"artifactId":"a1","parts":[{"data":[1.5,"x"],"metadata":{"k":1}}]}],"history":[{"messageId":"m1","role":"ROLE_USER","parts":[{"url":"u","filename":"f","mediaType":"a/b"},{"raw":"AAEC"}]}]}}"#,
    r#"{"id":"t1","status":{"state":5},"history":[],"artifacts":null,"metadata":{"data_part_compat":true}}"#,
    r#"{"kind":"task","id":"t1","contextId":"c1","status":{"state":"input-required","timestamp":"2026-11-29T12:00:00+02:00","message":{"kind":"message","messageId":"m2","role":"agent","parts":[{"kind":"text","text":"which?"}]}},"artifacts":[{"artifactId":"a1","parts":[{"kind":"file","file":{"uri":"u","name":"n","mimeType":"a/b","x":1}}]}],"history":[{"messageId":"m1","role":"user","parts":[{"kind":"data","data":{"value":[1.5,"x"]},"metadata":{"data_part_compat":true}}]}]}"#,
    r#"{"task":{"id":"t1","status":{"state":"TASK_STATE_CANCELLED","update":{"message_id":"m","role":2,"content":[{"file":{"file_with_bytes":"QUFFQw==","mime_type":"a/b"}},{"data":{"data":{"k":1}}}]}}}}"#,
    r#"{"statusUpdate":{"taskId":"t1","contextId":"c1","status":{"state":"TASK_STATE_COMPLETED"},"metadata":{}}}"#,
    r#"{"artifactUpdate":{"taskId":"t1","contextId":"c1","append":true,"lastChunk":true,"artifact":{"artifactId":"a1","parts":[{"text":"x"}]}}}"#,
    r#"{"kind":"status-update","taskId":"t1","contextId":"c1","final":true,"status":{"state":"completed"}}"#,
    r#"{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"a"}]},"configuration":{"returnImmediately":true,"historyLength":3,"taskPushNotificationConfig":{"url":"u","authentication":{"scheme":"Bearer"}}}}"#,
    r#"{"message":{"messageId":"m","role":"user","parts":[{"kind":"text","text":"a"}]},"configuration":{"blocking":true,"pushNotificationConfig":{"url":"u","authentication":{"schemes":["Bearer"]}}}}"#,
    r#"{"configs":[{"id":"p","taskId":"t","url":"https://e.example","authentication":{"scheme":"Bearer","credentials":"s"}}],"nextPageToken":""}"#,
    r#"{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{"id":"p","url":"u"}}"#,
    r#"[{"taskId":"t","pushNotificationConfig":{"id":"p","url":"u","authentication":{"schemes":[]}}}]"#,
];

/// Lines that MCP servers write.
pub const MCP_LINES: [&str; 10] = [
    r#"{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"a"}],"_meta":{"x":1}}}"#,
    "\u{1b}[1m> {\"a\":1} {\"jsonrpc\":\"2.0\",\"id\":\"17\",\"result\":{}}\r",
    r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url","url":"u"}},"b":{"method":"roots/list"}},"requestState":"s"}}"#,
    r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"u","message":"m"}]}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"m","data":{"supported":["2026-07-28"],"requested":"x"}}}"#,
    r#"{"jsonrpc":"2.0","id":"p","result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"instructions":"i","ttlMs":1,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}}"#,
    r#"{"jsonrpc":"2.0","id":"user_name","method":"elicitation/create","params":{"elicitationId":"e","message":"m","task":{}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a","_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tasks":{},"logging":{}},"serverInfo":{"name":"s"}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":17,"progress":0.5}}"#,
];

/// Requests of MCP clients: `MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name` and body, each on a line; an empty line is
/// a header that is not there.
pub const MCP_REQUESTS: [&str; 8] = [
    "2026-07-28\ntools/call\nadd\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"add\",\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\"io.modelcontextprotocol/clientCapabilities\":{\"roots\":{}},\"progressToken\":1}}}",
    "2026-07-28\nprompts/get\n=?base64?w7xiZXI=?=\n{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"prompts/get\",\"params\":{\"name\":\"\\u00fcber\",\"inputResponses\":{\"k\":{}},\"requestState\":\"s\",\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\"io.modelcontextprotocol/clientCapabilities\":{},\"io.modelcontextprotocol/logLevel\":\"info\"}}}",
    "2026-07-28\nsubscriptions/listen\n\n{\"jsonrpc\":\"2.0\",\"id\":1.0,\"method\":\"subscriptions/listen\",\"params\":{\"notifications\":{\"toolsListChanged\":true,\"resourceSubscriptions\":[\"a://b\"]},\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\"io.modelcontextprotocol/clientCapabilities\":{}}}}",
    "2025-11-25\n\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\"clientInfo\":{\"name\":\"c\",\"version\":\"1\"}}}",
    "2025-06-18\n\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}",
    "\n\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{\"uri\":\"a://b\",\"_meta\":null}}",
    "2031-01-01\n\n\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}",
    "2026-07-28\n\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"action\":\"accept\"}}",
];
