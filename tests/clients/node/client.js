// Talks to Mycora as a program in Node.js does: @grpc/grpc-js, with the protos as they are.
//
// Submits a flow, watches it, breaks the watch and resumes it, reads results and logs, and makes sure that errors
// are what a program can act on: once with a client certificate and once with tokens. Prints a line for each check
// and closes with the counts.

import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { isDeepStrictEqual, promisify } from 'node:util';

import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

import { Profile, nobody, thumbprint, withCertificate, withTokens } from './connection.js';
import { Refusal, pack, patiently } from './refusal.js';

const DEADLINE_SECS = 60;
const NUMBERS = [1, 2, 3];
const [profilePath, protos] = process.argv.slice(2);
const definition = loadSync(['mycora/v1/actor_service.proto', 'mycora/v1/flow_service.proto'], {
  includeDirs: [protos], enums: String, longs: String, defaults: true, oneofs: true,
});
const { ActorService, FlowService } = grpc.loadPackageDefinition(definition).mycora.v1;

/** Counts what was checked. */
class Checks {
  part = '';
  passed = 0;
  failed = 0;

  that(what, holds, otherwise) {
    console.log(`${holds ? 'ok  ' : 'FAIL'} ${this.part}: ${what}${holds ? '' : `: ${JSON.stringify(otherwise)}`}`);
    holds ? this.passed++ : this.failed++;
  }
}

/** Within which time a call has to be answered. */
function within(secs) {
  return { deadline: Date.now() + secs * 1000 };
}

/** The answer to a call that has one. */
function ask(stub, method, request) {
  return promisify(stub[method].bind(stub))(request, new grpc.Metadata(), within(DEADLINE_SECS));
}

/** The refusal of a call that must fail. */
async function refused(call) {
  return call.then(() => { throw new Error('the call was answered'); }, (error) => new Refusal(error));
}

/** A node that runs a shell script. */
function shell(name, text, { envVars = {}, ...more } = {}) {
  return { name, job: { scriptType: 'SCRIPT_TYPE_SHELL', script: { text }, envVars }, ...more };
}

/** Three numbers, doubled side by side, and added up when somebody gives the signal. */
function sumOfDoubles(name) {
  const doubles = NUMBERS.map((n) =>
    shell(`double-${n}`, `echo "twice=$((2 * ${n}))" >> "$MYCORA_RESULT"; echo "doubled ${n}"`));
  const add = shell('add', 'echo "total=$((N1 + N2 + N3))" >> "$MYCORA_RESULT"', {
    depends: doubles.map((node) => node.name),
    prerequisites: ['signal:add-up'],
    envVars: Object.fromEntries(NUMBERS.map((n) => [`N${n}`, '${{ ' + `results.double-${n}.twice` + ' }}'])),
  });
  return { name, nodes: [...doubles, add] };
}

/** The flow that was started. The request id makes it safe to try again. */
async function submit(stub, contextId, flow, requestId = randomUUID()) {
  const answer = await patiently(() => ask(stub, 'submitFlow', { requestId, contextId, flow }));
  return answer.flow;
}

/** The flow that the other checks are about. */
async function checkSubmission(checks, stub, context) {
  const [requestId, spec] = [randomUUID(), sumOfDoubles('from-node')];
  const flow = await submit(stub, context, spec, requestId);
  checks.that('a flow is submitted', flow.id > 0 && flow.nodeCount === 4, flow);
  const again = await submit(stub, context, spec, requestId);
  checks.that('the same request id gives the same flow', again.uid === flow.uid, again);
  const refusal = await refused(submit(stub, context, sumOfDoubles('another'), requestId));
  const reused = refusal.code === 'ALREADY_EXISTS' && refusal.reason === 'REQUEST_ID_REUSED';
  checks.that('with another body it is refused', reused, refusal);
  return flow;
}

/** What happens to a flow: all of it, or what came after a position. */
function watch(stub, flow, resumePosition = '', secs = DEADLINE_SECS) {
  const stream = stub.watchFlow({ contextId: flow.contextId, flowId: flow.id, resumePosition }, within(secs));
  // A stream that was left tells that it was cancelled, and nobody reads it any more.
  return stream.on('error', () => {});
}

/** Breaks the watch when all doubles are there, and gives them, the changes that were told, and its position. */
async function watchUntilDoubled(stub, flow) {
  const [doubled, told] = [new Set(), new Set()];
  let [snapshotEnded, position] = [false, ''];
  const stream = watch(stub, flow);
  for await (const answer of stream) {
    position = answer.resumePosition || position;
    const node = answer.node ?? answer.nodeChange;
    if (node?.state === 'NODE_STATE_COMPLETED') doubled.add(node.jobId);
    if (answer.nodeChange) told.add(`${node.jobId} ${node.state}`);
    snapshotEnded ||= answer.event === 'snapshotEnd';
    if (snapshotEnded && doubled.size === NUMBERS.length) break;
  }
  stream.cancel();
  return [doubled, told, position];
}

async function collect(stream) {
  const answers = [];
  for await (const answer of stream) answers.push(answer);
  return answers;
}

async function checkWatching(checks, stub, flow) {
  const [doubled, told, position] = await watchUntilDoubled(stub, flow);
  checks.that('a watch begins with a snapshot, and says where it is', position !== '', position);
  const refusal = await refused(collect(watch(stub, flow, position, 0.5)));
  checks.that('a deadline ends it', refusal.code === 'DEADLINE_EXCEEDED', refusal);

  const { contextId, id: flowId } = flow;
  await ask(stub, 'signalFlow', { requestId: randomUUID(), contextId, flowId, name: 'add-up' });
  const answers = await collect(watch(stub, flow, position));
  const snapshot = answers.some(({ event }) => event === 'node' || event === 'snapshotEnd');
  checks.that('a watch that is resumed has no snapshot', !snapshot, answers);
  const changes = answers.flatMap(({ nodeChange }) => nodeChange ?? []);
  const again = changes.filter(({ jobId, state }) => told.has(`${jobId} ${state}`));
  checks.that('tells no change again', again.length === 0, again);
  const completed = changes.filter(({ state }) => state === 'NODE_STATE_COMPLETED').map(({ jobId }) => jobId);
  const added = completed.filter((jobId) => !doubled.has(jobId));
  checks.that('tells what came after', added.length === 1, changes);
  const end = answers.findLast(({ event }) => event === 'flow')?.flow.status;
  checks.that('and ends when the flow is FINISHED', end === 'FLOW_STATUS_FINISHED', end);
}

/** The flow's nodes, page by page. */
async function* pagesOf(stub, flow, pageSize) {
  let pageToken = '';
  do {
    const request = { contextId: flow.contextId, flowId: flow.id, pageSize, pageToken };
    const page = await ask(stub, 'listFlowNodes', request);
    yield page.nodes;
    pageToken = page.nextPageToken;
  } while (pageToken);
}

/** What a job printed. */
async function logs(stub, request) {
  const pieces = await collect(stub.streamFlowLogs(request, within(DEADLINE_SECS)));
  return Buffer.concat(pieces.map((piece) => piece.data)).toString();
}

async function checkResults(checks, stub, flow) {
  const { contextId, id: flowId } = flow;
  const { result } = (await ask(stub, 'getFlow', { contextId, flowId })).flow;
  checks.that("the flow's result is what was computed", isDeepStrictEqual({ ...result }, { 'add.total': '12' }), result);
  const pages = await collect(pagesOf(stub, flow, 3));
  checks.that('its nodes come in pages', pages[0].length === 3 && pages[1]?.length === 1, pages);
  const nodes = pages.flat();
  const completed = nodes.every((node) => node.state === 'NODE_STATE_COMPLETED' && node.exitCode === 0);
  checks.that('all are COMPLETED', nodes.length === 4 && completed, nodes);
  const { twice } = nodes.find((node) => node.name === 'double-3').result;
  checks.that("a node's result can be read", twice === '6', twice);

  const request = { contextId, flowId, node: 'double-2', follow: true };
  const text = await logs(stub, request);
  checks.that('what a job printed can be read after its end', text === 'doubled 2\n', text);
  const rest = await logs(stub, { ...request, attempt: 1, offset: 'doubled '.length });
  checks.that('also from a byte on', rest === '2\n', rest);
}

async function checkRefusals(checks, stub, contextId) {
  const nodes = [shell('c d', 'true'), shell('eager', 'true', { policy: { retries: 101 } })];
  const invalid = await refused(submit(stub, contextId, { name: '', nodes }));
  const named = invalid.code === 'INVALID_ARGUMENT' && invalid.reason === 'INVALID_REQUEST';
  checks.that('a flow that cannot be is INVALID_ARGUMENT', named, invalid);
  const all = ['flow.name', 'flow.nodes[0].name', 'flow.nodes[1].policy.retries'];
  checks.that('with all violations at once', isDeepStrictEqual(Object.keys(invalid.violations), all), invalid);
  const missing = await refused(ask(stub, 'getFlow', { contextId, flowId: 4_000_000_000 }));
  const notFound = missing.code === 'NOT_FOUND' && missing.reason === 'NOT_FOUND';
  checks.that('an unknown flow is NOT_FOUND', notFound, missing);
}

async function checkIdentity(checks, profile, credentials) {
  const stub = profile.client(ActorService, 'storage', credentials);
  const me = await ask(stub, 'whoAmI', {});
  checks.that('the server knows who calls', me.actor?.id === profile.actor, me);
  checks.that('and says for whom tokens are', me.tokenAudience === `spiffe://${profile.trust_domain}`, me);
  stub.close();
}

/** The same with each way to say who one is. */
async function checkAll(checks, profile, credentials) {
  await checkIdentity(checks, profile, credentials);
  const stub = profile.client(FlowService, 'scheduler', credentials);
  const flow = await checkSubmission(checks, stub, profile.context);
  await checkRefusals(checks, stub, profile.context);
  await checkWatching(checks, stub, flow);
  await checkResults(checks, stub, flow);
  stub.close();
}

async function checkStranger(checks, profile, who, credentials, reason) {
  const stub = profile.client(FlowService, 'scheduler', credentials);
  const refusal = await refused(ask(stub, 'listFlows', { contextId: profile.context }));
  const unauthenticated = refusal.code === 'UNAUTHENTICATED' && refusal.reason === reason;
  checks.that(`${who} is UNAUTHENTICATED`, unauthenticated, refusal);
  stub.close();
}

async function checkCertificate(checks, profile) {
  await checkAll(checks, profile, withCertificate(profile));
  await checkStranger(checks, profile, 'who has none', nobody(profile), 'IDENTITY_REQUIRED');
}

async function checkToken(checks, profile) {
  checks.that('the profile names a signing_key', profile.signing_key);
  if (!profile.signing_key) return;
  await checkAll(checks, profile, withTokens(profile));
  const elsewhere = withTokens(profile, { trustDomain: 'elsewhere' });
  await checkStranger(checks, profile, 'who has one for another place', elsewhere, 'IDENTITY_UNUSABLE');
  const misnamed = withTokens(profile, { kid: thumbprint(generateKeyPairSync('ed25519').publicKey) });
  await checkStranger(checks, profile, 'who has one that names another key', misnamed, 'IDENTITY_UNUSABLE');
}

/** A server that has no time at first, as an overloaded scheduler. */
async function checkPatience(checks) {
  let asked = 0;
  const server = new grpc.Server();
  server.addService(FlowService.service, {
    getFlow({ request }, callback) {
      asked++;
      const later = { 'google.rpc.RetryInfo': { retryDelay: { nanos: 10_000_000 } } };
      if (asked === 1) callback(pack(grpc.status.RESOURCE_EXHAUSTED, 'later', later));
      else callback(null, { flow: { id: request.flowId } });
    },
  });
  const insecure = grpc.ServerCredentials.createInsecure();
  const port = await promisify(server.bindAsync.bind(server))('127.0.0.1:0', insecure);
  const stub = new FlowService(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
  const answer = await patiently(() => ask(stub, 'getFlow', { flowId: 7 }));
  checks.that('who is told when to try again does so', answer.flow.id === 7 && asked === 2, asked);
  stub.close();
  server.forceShutdown();
}

const [profile, checks] = [new Profile(profilePath), new Checks()];
const parts = { certificate: checkCertificate, token: checkToken, patience: checkPatience };
for (const [name, check] of Object.entries(parts)) {
  checks.part = name;
  await check(checks, profile).catch((error) => checks.that('goes on to its end', false, error.code ? new Refusal(error) : error.stack));
}
console.log(`${checks.passed} passed, ${checks.failed} failed`);
// A part that broke off may have left a connection open.
process.exit(checks.failed ? 1 : 0);
