"""What every preset is, for `rookery algorithms`; of published settings also what differs from their source."""

from __future__ import annotations

from rookery.core.registry import ABOUT

ABOUT.update(
    {
        "iql": "Independent Q-learning (Tan 1993).",
        "dqn": "Deep Q-learning; for several agents, without their index (Mnih et al. 2015).",
        "per": "DQN with prioritized replay (Schaul et al. 2016).",
        "vdn": "The team's value is the sum of the agents' (Sunehag et al. 2018).",
        "qmix": "The team's value is a monotonic function of the agents' and the state (Rashid et al. 2018).",
        "qmix_pymarl": "QMIX with PyMARL's settings (Samvelyan et al. 2019).",
        "qmix_pymarl2": "QMIX with PyMARL2's settings (Hu et al. 2021). Its loss is half of ours, so the largest "
        "gradient norm is twice its.",
        "qmix_jaxmarl": "QMIX with JaxMARL's settings for MPE (Rutherford et al. 2024). A GRU's initial weights are "
        "ours, not flax's.",
        "differ_vdn": "VDN whose agents learn from their own share of the TD error (DIFFER, Hu et al. 2023).",
        "differ_qmix": "QMIX whose agents learn from their own share of the TD error (DIFFER, Hu et al. 2023).",
        "differ_transformer": "DIFFER with agents that attend to the entities they see.",
        "differ_qmix_published": "DIFFER on QMIX with its published settings (Hu et al. 2023). Importance weights are "
        "relative to the largest of the transitions drawn, there to the largest of the batch.",
        "super_dqn": "DQN per agent that shares surprising transitions (SUPER, Gerstgrasser et al. 2023).",
        "super_dqn_published": "SUPER with its published settings (Gerstgrasser et al. 2023). Different here: one "
        "priority of a transition for all agents, offers are learned from at once and not kept, a squared loss, no "
        "dueling heads, no convolutions, one limit of the gradient's norm for all agents.",
        "super_qmix": "DIFFER plus sharing; receivers accept only typical TD errors.",
        "inspire_qmix": "DIFFER plus sharing among agents in range (INSPIRE).",
        "mappo": "PPO whose critic sees the global state (Yu et al. 2022).",
        "mappo_per_agent": "MAPPO with weights of each agent's own.",
        "mappo_onpolicy": "MAPPO with the on-policy code base's settings for MPE (Yu et al. 2022); feed-forward, as "
        "its mappo.",
        "mappo_jaxmarl": "Recurrent MAPPO with JaxMARL's settings for MPE (Rutherford et al. 2024). A GRU's initial "
        "weights are ours, not flax's.",
        "ippo": "PPO whose critic sees what its agent sees (de Witt et al. 2020).",
        "ippo_jaxmarl": "IPPO with JaxMARL's settings for MPE (Rutherford et al. 2024).",
        "ppo": "Proximal policy optimization of a single agent (Schulman et al. 2017).",
        "happo": "Agents with weights of their own, updated one after the other (Kuba et al. 2022).",
        "a2c": "Advantage actor-critic: one unclipped pass over each rollout (Mnih et al. 2016).",
        "a3c": "A2C by learners that do not wait for each other (Mnih et al. 2016).",
        "a2c_atari": "A2C on images, with the settings of OpenAI's Baselines. Actor and critic have encoders of their "
        "own, not a common one.",
        "a3c_atari": "The same by learners that do not wait for each other.",
        "hyper_mappo": "MAPPO with increments of all actor layers, generated from what the team sees.",
        "hyper_mappo_last": "The same for the last layer only.",
        "hyper_mappo_local": "The same from what the agent itself sees, so acting is decentralized.",
        "hyper_mappo_notes": "Hyper-MAPPO with the settings of the lab notes it comes from.",
        "hypermarl": "Agent embeddings generate all weights of actor and critic (Tessera et al. 2025).",
        "hypermarl_smax": "The same for the layers after a GRU, as its authors do on SMAX.",
        "maddpg": "Deterministic actors, critics of all observations and actions (Lowe et al. 2017).",
        "maddpg_openai": "MADDPG with the settings of OpenAI's script for MPE (Lowe et al. 2017). The environment and "
        "the buffer get the action that a relaxed sample stands for, not the sample.",
        "maddpg_tilbury": "MADDPG with the settings that Tilbury et al. 2023 tuned for MPE.",
        "iddpg": "Deterministic actors, each with a critic of its own observation and action.",
        "matd3": "MADDPG with twin critics, delayed actors, smoothed targets (Ackermann et al. 2019).",
        "masac": "Soft actor-critic with critics of all observations and actions (Haarnoja et al. 2018).",
        "facmac": "Own critics, mixed into the team's value (Peng et al. 2021).",
        "ddpg": "Deep deterministic policy gradient of a single agent (Lillicrap et al. 2016).",
        "td3": "DDPG with twin critics, delayed actors and smoothed targets (Fujimoto et al. 2018).",
        "sac": "Soft actor-critic with automatic temperature (Haarnoja et al. 2018).",
        "dqn_atari": "DQN with the Nature network (Mnih et al. 2015).",
        "per_atari": "Double DQN with prioritized replay (Schaul et al. 2016).",
        "der": "Data-efficient Rainbow for 100,000 steps (van Hasselt et al. 2019).",
        "drq": "DQN on randomly shifted images for 100,000 steps (DrQ(eps), Agarwal et al. 2021).",
        "emdqn": "DQN with a second target, the best return that a memory knows (Lin et al. 2018).",
        "erlam": "DQN with a second target, values propagated over a graph of states (Zhu et al. 2020).",
        "q": "Tabular Q-learning.",
        "q_published": "Tabular Q-learning with the settings behind the published maze counts.",
        "mfec": "The best return of the nearest states (Blundell et al. 2016).",
        "mfec_atari": "MFEC on images (Blundell et al. 2016).",
        "nec": "A differentiable dictionary of states and values (Pritzel et al. 2017).",
        "nec_atari": "NEC on images (Pritzel et al. 2017).",
        "gq": "Q-learning on a graph of states.",
        "gq_atari": "GQ on images: keys are random projections, values n-step returns.",
        "gq_published": "GQ with the settings behind the published maze counts.",
        "gcmr": "GQ with key nodes found by clustering, and values propagated along paths between them.",
        "gcq_published": "GCMR with the settings behind the published maze counts (canopies).",
        "gbmr": "GQ with key nodes found by a graph network, and values propagated along paths.",
        "gbmr_atari": "GBMR on images.",
        "gbmr_sweep": "GQ with as many backups spent on prioritized sweeping: the control for GBMR.",
        "gbmr_frontier": "GBMR that explores toward actions its graph has not tried.",
        "gbmr_framework": "A VAE, a graph, a trained graph network and an A2C actor over what is read.",
        "gqsi": "GQ with key nodes found by their degree, and values propagated along paths.",
        "gqsi_atari": "GQSI on images.",
        "gqil": "GQ with key nodes that recur in the best trajectories, and values propagated along paths.",
        "gqil_atari": "GQIL on images.",
    }
)
