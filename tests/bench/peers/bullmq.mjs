// The loads of the bench on BullMQ, over the Redis at a socket.
//
//   node bullmq.mjs worker SOCKET    does the jobs, which do nothing, until its input ends
//   node bullmq.mjs client SOCKET    reads one load a line, and answers with one line of figures
import { createInterface } from "node:readline";
import { FlowProducer, Queue, QueueEvents, Worker } from "bullmq";

const QUEUE = "bench";
// Jobs at once; as many as the runner of the suite has slots for no-op scripts.
const AT_ONCE = 16;

const [role, path] = process.argv.slice(2);
const connection = { path, maxRetriesPerRequest: null };

// A caller that waits for an answer sees the end of this process.
const end = (error) => {
  console.error(error);
  process.exit(1);
};

const now = () => performance.timeOrigin + performance.now();
const job = (name, children) => ({ name, queueName: QUEUE, data: {}, ...(children && { children }) });
const percentile = (values, percent) =>
  values.sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor((values.length * percent) / 100))];

async function work() {
  const worker = new Worker(QUEUE, async () => now(), { connection, concurrency: AT_ONCE });
  worker.on("error", end);
  worker.waitUntilReady().then(() => console.log("ready"));
  process.stdin.on("end", () => worker.close().then(() => process.exit(0))).resume();
}

async function ask() {
  const flows = new FlowProducer({ connection });
  const queue = new Queue(QUEUE, { connection });
  const events = new QueueEvents(QUEUE, { connection });
  [flows, queue, events].forEach((part) => part.setMaxListeners(0).on("error", end));
  await Promise.all([flows.waitUntilReady(), queue.waitUntilReady(), events.waitUntilReady()]);

  const flow = async (tree) => (await flows.add(tree)).job.waitUntilFinished(events);
  const timed = async (run) => {
    const begin = now();
    await run();
    return now() - begin;
  };

  const loads = {
    async chain({ length, runs }) {
      const times = [];
      for (let run = 0; run < runs; run++) {
        let tree = job("n0");
        for (let i = 1; i < length; i++) tree = job(`n${i}`, [tree]);
        times.push(await timed(() => flow(tree)));
      }
      return { milliseconds: percentile(times, 50) };
    },
    async fan_out({ width, runs }) {
      const times = [];
      for (let run = 0; run < runs; run++) {
        const children = Array.from({ length: width }, (_, i) => job(`n${i}`));
        times.push(await timed(() => flow(job("join", children))));
      }
      return { milliseconds: percentile(times, 50) };
    },
    async single({ flows: count, at_once }) {
      let left = count;
      const one = async () => {
        while (left-- > 0) await flow(job("only"));
      };
      const took = await timed(() => Promise.all(Array.from({ length: at_once }, one)));
      return { per_second: (count * 1000) / took };
    },
    async wide({ jobs }) {
      let done = 0;
      let all;
      const ended = new Promise((resolve) => (all = resolve));
      const count = () => ++done === jobs && all();
      events.on("completed", count);
      const took = await timed(async () => {
        for (let first = 0; first < jobs; first += 500) {
          const part = Math.min(500, jobs - first);
          await queue.addBulk(Array.from({ length: part }, (_, i) => ({ name: `n${first + i}`, data: {} })));
        }
        await ended;
      });
      events.off("completed", count);
      return { per_second: (jobs * 1000) / took };
    },
    async alone({ flows: count }) {
      const starts = [];
      const ends = [];
      for (let i = 0; i < count; i++) {
        const begin = now();
        const started = await flow(job("only"));
        ends.push(now() - begin);
        starts.push(started - begin);
      }
      return {
        start_p50: percentile(starts, 50),
        start_p99: percentile(starts, 99),
        end_p50: percentile(ends, 50),
      };
    },
  };

  console.log("ready");
  for await (const line of createInterface({ input: process.stdin })) {
    const { load, ...sizes } = JSON.parse(line);
    console.log(JSON.stringify(await loads[load](sizes)));
  }
  await Promise.all([flows.close(), queue.close(), events.close()]);
}

await (role === "worker" ? work() : ask()).catch(end);
